# SPDX-License-Identifier: Apache-2.0
"""What the commands share: their options, and how they name things, print JSON or CSV and speak to a person."""

import csv
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from stowage.store import Row
from stowage.text import NOTHING, date, printable

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The file named in stowage.enable(store=...).")]
RunId = Annotated[int | None, typer.Option("--run", metavar="ID", help="Which run; else the newest planned one.")]


def _only_one_form(context: typer.Context, given: bool) -> bool:
    """Refuses the later of `--json` and `--csv`, in one line."""
    if given and (context.params.get("as_json") or context.params.get("as_csv")):
        note("--json and --csv exclude one another; give one")
        raise typer.Exit(2)
    return given


# A command names these `as_json` and `as_csv`.
AsJson = Annotated[bool, typer.Option("--json", callback=_only_one_form, help="Print JSON: bytes and nanoseconds.")]
AsCsv = Annotated[bool, typer.Option("--csv", callback=_only_one_form, help="Print the rows of --json as CSV.")]
Limit = Annotated[int | None, typer.Option(min=0, metavar="N", help="How many rows of each list; 0 for all.")]


def cut(rows: list[Row], limit: int | None, default: int, as_data: bool, what: str) -> list[Row]:
    """The first rows: `limit` of them, or `default` where the user named no limit and reads text; 0 is all.

    `as_data`: they are printed as JSON or CSV.
    """
    count = limit if limit is not None else 0 if as_data else default
    if count == 0 or len(rows) <= count:
        return rows
    note(f"{count} of {len(rows)} {what}; --limit 0 shows all")
    return rows[:count]


def is_planned(run: Row) -> bool:
    return run["planned_peak_bytes"] is not None


def is_step(run: Row) -> bool:
    return run["kind"] == "step"


def disagreement(row: Row) -> str:
    return f"CUPTI and the allocator disagree on {row['size_mismatches']} of {row['compared_sizes']} allocations"


def tensor_name(tensor: Row) -> str:
    return tensor["name"] or f"tensor {tensor['tensor']}"


def op_name(op: int | None, kind: str | None) -> str:
    return NOTHING if op is None else f"{op} {kind}"


def print_json(value: Any) -> None:
    # SQL may return blobs.
    print(json.dumps(value, indent=2, default=lambda blob: blob.hex()))


def print_csv(rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Prints rows with the columns of the first, or `columns` where there may be no row.

    Quantities are in the units that their columns name. Lists are as in JSON, blobs in hexadecimal, and None is empty.
    """
    names = list(columns or (rows[0] if rows else ()))
    if not names:
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_cell(row[name]) for name in names] for row in rows)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (bool, list, dict)):
        return json.dumps(value)
    if isinstance(value, bytes):
        return value.hex()
    # A name may come from anyone, and could steer a terminal; a file gets it as it is.
    return printable(value) if isinstance(value, str) and sys.stdout.isatty() else value


def note(text: str) -> None:
    print(f"stowage: {printable(text)}", file=sys.stderr)


def note_run(run: Row) -> None:
    note(f"run {run['run_id']} '{run['name']}' on {run['device']}, torch {run['torch_version']}, stowage "
         f"{run['stowage_version']}, {run['clock']}, {run['dropped_records']} records dropped, "
         f"{date(run['created_unix_ns'])}")
    if not run["complete"]:
        note("the run ended early: what is shown is what it did until then")
    if run["size_mismatches"]:
        note(disagreement(run))


def note_mismatch(whose: str, peak: Row, stated_bytes: int) -> None:
    """A replay that finds another peak than was stated shows a fault, in the store or in stowage: say so."""
    if peak["live_bytes"] != stated_bytes:
        note(f"{whose} states a peak of {stated_bytes} B, its events replayed have {peak['live_bytes']} B")


def working(what: str) -> AbstractContextManager[object]:
    """Shows a person that something is going on while it lasts."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # only here: commands that are done at once start sooner without it

    return Console(stderr=True).status(what)


def suggest(command: str, store: str, run_id: int | None = None, *options: str) -> None:
    """Names the next useful command, to a person."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        run = ("--run", str(run_id)) if run_id is not None else ()
        print(f"\nnext: {shlex.join(('stowage', command, store, *run, *options))}", file=sys.stderr)
