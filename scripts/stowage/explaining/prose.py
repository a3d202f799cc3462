# SPDX-License-Identifier: Apache-2.0
"""How the command line writes sentences: headings, paragraphs, lists and numbers in them. Needs no torch."""

import textwrap
from collections.abc import Sequence
from typing import Any, Protocol

from stowage.text import print_table, printable, strong

WIDTH = 110


class Writer(Protocol):
    """Takes an explanation, piece by piece: the terminal prints it, the page of a report collects it."""

    def title(self, text: str) -> None:
        """Of the whole."""

    def fact(self, text: str) -> None:
        """A line that is not wrapped, as its columns line up with those of others."""

    def head(self, text: str) -> None:
        """Of a section."""

    def say(self, text: str) -> None:
        """A paragraph."""

    def item(self, text: str) -> None:
        """Of a list."""

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None: ...


class Terminal:
    """Prints; wraps what is longer than `width` and indents what belongs to a heading, unless that is None."""

    def __init__(self, width: int | None = WIDTH) -> None:
        self._width = width
        self._after_facts = False

    def title(self, text: str) -> None:
        print(strong(printable(text)))

    def fact(self, text: str) -> None:
        print(f"  {printable(text)}")
        self._after_facts = True

    def head(self, text: str) -> None:
        print(f"\n{strong(printable(text))}")

    def say(self, text: str) -> None:
        if self._after_facts:
            print()
            self._after_facts = False
        print(printable(text) if self._width is None else self._wrapped(text, "  "))

    def item(self, text: str) -> None:
        print(f"- {printable(text)}" if self._width is None else self._wrapped(text, "- "))

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if self._width is None:
            print_table(headings, rows)
        else:
            print_table(["", *headings], [["", *row] for row in rows])

    def _wrapped(self, text: str, first: str) -> str:
        return textwrap.fill(printable(text), self._width, initial_indent=first, subsequent_indent="  ",
                             break_long_words=False)


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
