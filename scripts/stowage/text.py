# SPDX-License-Identifier: Apache-2.0
"""How the command line writes quantities and tables. Needs no torch."""

import os
import re
import shutil
import sys
from collections.abc import Container, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import typer

NOTHING = "-"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return NOTHING
    amount, unit = float(size_bytes), "B"
    for larger in UNITS[1:]:
        if abs(amount) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{amount:.2f} {unit}"


def parse_size(text: str) -> int:
    """Bytes of "4096", "1MiB" or "0.5 GiB"; throws ValueError."""
    found = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})?\s*", text, re.IGNORECASE | re.ASCII)
    if not found:
        raise ValueError(f"'{text}' is no size; give 4096, 64KiB or 1.5GiB")
    unit = [each.lower() for each in UNITS].index((found[2] or "B").lower())
    return int(float(found[1]) * 1024 ** unit)


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


def has_colours() -> bool:
    """Whether stdout is a terminal that knows colours, and the user did not ask for none (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def strong(text: str) -> str:
    """Bold on a terminal."""
    return typer.style(text, bold=True) if has_colours() else text


def good(text: str) -> str:
    """Green on a terminal: what has been saved."""
    return typer.style(text, fg="green") if has_colours() else text


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], strong_rows: Container[int] = ()) -> None:
    """Prints aligned columns; one whose heading starts with ">" is set to the right.

    A terminal gets bold headings and `strong_rows`, and lines cut to its width. (rich's tables took 20 s for 20,000 rows.)
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, line in enumerate(table_lines(headings, rows), -1):
        text = line if columns is None else shorten(line, columns)
        print(strong(text) if number == -1 or number in strong_rows else text)


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """The headings and rows of a table, as `print_table` aligns them."""
    lines = [[printable(cell) for cell in row] for row in ([heading.removeprefix(">") for heading in headings], *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligns = [str.rjust if heading.startswith(">") else str.ljust for heading in headings]
    for line in lines:
        yield "  ".join(align(cell, width) for align, cell, width in zip(aligns, line, widths, strict=True)).rstrip()


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[:max(0, width - 3)] + "..."
