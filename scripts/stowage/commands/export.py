# SPDX-License-Identifier: Apache-2.0
"""The command that writes what a store holds in the formats of other tools."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from stowage.commands.common import AsJson, RunId, StorePath, note, note_run, print_json, working
from stowage.exporting.formats import ENDINGS, Export, ExportError, Format, Table, check_destination, encode, format_of, write
from stowage.store import Store
from stowage.text import printable, size

#: What to do with a file of each format.
NEXT = {
    Format.PERFETTO: "open {file} in ui.perfetto.dev or chrome://tracing",
    Format.MEMORY_VIZ: "drop {file} on pytorch.org/memory_viz",
    Format.MINIMALLOC: "stowage-solve layout {file}",
    Format.STEP: "stowage-solve order {file} --explain",
    Format.CSV: "open {file} in a spreadsheet, or as a data frame",
}


def export(
    store: StorePath,
    format: Annotated[Format | None, typer.Option("--format", help="Else the end of FILE's name says it.")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Else named after the store.")] = None,
    planned: Annotated[bool, typer.Option("--planned", help="As planned: order, addresses.")] = False,
    table: Annotated[Table, typer.Option("--table", help="Of the format csv.")] = Table.OPS,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Writes a run for other tools.

    perfetto: ops, kernels and live bytes over time, recorded and planned, for ui.perfetto.dev. memory-viz: a snapshot for
    PyTorch's memory viewer. minimalloc: the buffers of an arena; --planned with their offsets. step: the problem that
    stowage-solve plans. csv: the table of ops or tensors. Files whose names end in .gz are compressed.
    """
    try:
        if format is None and output is None:
            raise ExportError("cannot export: neither --format nor -o FILE says what; give one")
        asked = Export(format or format_of(output or ""), planned, table)
        if planned and asked.format is Format.STEP:
            raise ExportError("cannot export a plan as step: that is the problem, not its answer; leave --planned out")
        path = output or derived_path(store, asked)
        with Store(store) as opened:
            run = opened.planned_run(run_id) if planned else opened.run(run_id)
            check_destination(path, asked, force)
            with working("exporting"):
                content = encode(opened, run, asked)
        size_bytes = write(path, content)
    except ExportError as error:
        note(str(error))
        sys.exit(2)
    if as_json:
        return print_json({"run": run, "planned": planned, "format": asked.format.value, "file": path,
                           "size_bytes": size_bytes})

    note_run(run)
    print(f"wrote {printable(path)}: {asked.format.value}, {size(size_bytes)}")
    if sys.stdout.isatty() and sys.stderr.isatty():
        print(f"\nnext: {NEXT[asked.format].format(file=shlex.quote(path))}", file=sys.stderr)


def derived_path(store: str, export: Export) -> str:
    """In the working folder, as a result of the command."""
    ending = next(ending for ending, found in ENDINGS.items() if found is export.format)
    return Path(store).stem + (f".{export.table.value}" if export.format is Format.CSV else "") + ending
