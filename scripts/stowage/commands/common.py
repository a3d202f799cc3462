# SPDX-License-Identifier: Apache-2.0
"""What the commands share: their options, and how they name things, print JSON and speak to a person."""

import json
import shlex
import sys
from typing import Annotated, Any

import typer

from stowage.store import Row
from stowage.text import NOTHING, date, printable

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The file named in stowage.enable(store=...).")]
RunId = Annotated[int | None, typer.Option("--run", metavar="ID", help="Which run; else the newest planned one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: bytes and nanoseconds.")]
Limit = Annotated[int | None, typer.Option(min=0, metavar="N", help="How many rows of each list; 0 for all.")]


def cut(rows: list[Row], limit: int | None, default: int, as_json: bool, what: str) -> list[Row]:
    """The first rows: `limit` of them, or `default` where the user named no limit and reads text; 0 is all."""
    count = limit if limit is not None else 0 if as_json else default
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


def note(text: str) -> None:
    print(f"stowage: {printable(text)}", file=sys.stderr)


def note_run(run: Row) -> None:
    note(f"run {run['run_id']} '{run['name']}' on {run['device']}, torch {run['torch_version']}, stowage "
         f"{run['stowage_version']}, {run['clock']}, {run['dropped_records']} records dropped, "
         f"{date(run['created_unix_ns'])}")
    if run["size_mismatches"]:
        note(disagreement(run))


def note_mismatch(whose: str, peak: Row, stated_bytes: int) -> None:
    """A replay that finds another peak than was stated shows a fault, in the store or in stowage: say so."""
    if peak["live_bytes"] != stated_bytes:
        note(f"{whose} states a peak of {stated_bytes} B, its events replayed have {peak['live_bytes']} B")


def suggest(command: str, store: str, run_id: int | None = None, *options: str) -> None:
    """Names the next useful command, to a person."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        run = ("--run", str(run_id)) if run_id is not None else ()
        print(f"\nnext: {shlex.join(('stowage', command, store, *run, *options))}", file=sys.stderr)
