# SPDX-License-Identifier: Apache-2.0
"""How the command line writes quantities and tables. Needs no torch."""

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import typer

NOTHING = "-"


def size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return NOTHING
    amount, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{amount:.2f} {unit}"


def duration(duration_ns: int) -> str:
    if duration_ns < 1_000:
        return f"{duration_ns} ns"
    for factor, unit in ((1_000, "us"), (1_000_000, "ms")):
        if duration_ns < factor * 1_000:
            return f"{duration_ns / factor:.2f} {unit}"
    return f"{duration_ns / 1_000_000_000:.2f} s"


def date(unix_ns: int | None) -> str:
    if unix_ns is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(unix_ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return NOTHING  # a damaged store may hold any number


def printable(value: Any) -> str:
    """Text as it is; what could steer a terminal or break a line is escaped, as a store may come from anyone."""
    if value is None:
        return NOTHING
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints aligned columns; one whose heading starts with ">" is set to the right.

    A terminal gets bold headings, and lines cut to its width. (rich's tables took 20 s for 20,000 rows.)
    """
    lines = [[printable(cell) for cell in row] for row in ([heading.removeprefix(">") for heading in headings], *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligns = [str.rjust if heading.startswith(">") else str.ljust for heading in headings]
    terminal = sys.stdout.isatty()
    for number, line in enumerate(lines):
        text = "  ".join(align(cell, width) for align, cell, width in zip(aligns, line, widths, strict=True)).rstrip()
        if terminal:
            text = shorten(text, shutil.get_terminal_size().columns)
        print(typer.style(text, bold=True) if terminal and number == 0 else text)


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[:max(0, width - 3)] + "..."
