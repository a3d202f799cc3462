# SPDX-License-Identifier: Apache-2.0
"""How the command line writes sentences: headings, paragraphs, lists and numbers in them. Needs no torch."""

import os
import sys
import textwrap

import typer

from stowage.text import printable

WIDTH = 110


def bold(text: str) -> str:
    """On a terminal that wants it."""
    wants = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return typer.style(printable(text), bold=True) if wants else printable(text)


def head(text: str) -> None:
    print(f"\n{bold(text)}")


def say(text: str) -> None:
    print(textwrap.fill(printable(text), WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False))


def item(text: str) -> None:
    print(textwrap.fill(printable(text), WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False))


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def less(new: int, old: int) -> str:
    return "the same" if new == old else f"{percent(1 - new / max(old, 1))} less"


def ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def counted(count: int, what: str) -> str:
    """Such as "1 op", "2 ops"."""
    return f"{count} {what}{'' if count == 1 else 's'}"
