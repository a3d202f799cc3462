# SPDX-License-Identifier: Apache-2.0
"""How the command line writes quantities and tables. Needs no torch."""

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table

NOTHING = "-"
# Wide enough that a pipe never gets a wrapped or shortened line.
PIPE_WIDTH = 100_000


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
    """Text as it is; what could steer a terminal is escaped, as a store may come from anyone."""
    if value is None:
        return NOTHING
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(value))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints columns without lines around them; one whose heading starts with ">" is set to the right."""
    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(printable(heading.removeprefix(">")), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(printable(value) for value in row))
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())
