# SPDX-License-Identifier: Apache-2.0
"""The commands that show how ops follow one another: order, graph."""

from typing import Annotated

import typer

from stowage.commands.common import (AsCsv, AsJson, Limit, RunId, StorePath, cut, is_step, note_run, print_csv, print_json,
                                     suggest)
from stowage.commands.filters import FromStep, Scope, ToStep, choose
from stowage.ordering import around, find_op, side_by_side
from stowage.store import Row, Store
from stowage.text import NOTHING, print_table, printable, size

_NAMED = 2  # tensors in a cell


def order(store: StorePath, first_step: FromStep = 0, last_step: ToStep = None, scope: Scope = "", run_id: RunId = None,
          as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Ops as written and as planned, side by side.

    Marks updates of parameters, what each op frees, and the ops that moved, with the step at which they were: the fewest
    whose moving makes the planned order. --scope asks for steps at which an op of that module is, on either side.
    """
    choice = choose(first_step, last_step, scope, 0)
    with Store(store) as opened:
        run = opened.planned_run(run_id)
        rows = side_by_side(opened, run)
    moved = sum(row["planned_moved"] for row in rows)
    chosen = [row for row in rows if choice.has_step(row["step"])
              and (choice.has(row["scope"], 0) or choice.has(row["planned_scope"], 0))]
    shown = cut(chosen, limit, 0, as_json or as_csv, "steps")
    if as_json:
        return print_json({"run": run, "moved_ops": moved, "steps": shown})
    if as_csv:
        return print_csv(shown)

    note_run(run)
    print(f"{moved} of {len(rows)} ops moved: peak {size(run['program_peak_bytes'])} as written, "
          f"{size(run['planned_peak_bytes'])} as planned, bound {size(run['bound_bytes'])}")
    print()
    print_table(
        [">step", "as written", "frees", ">op", "as planned", "moved", "frees"],
        [(row["step"], marked(row, ""), frees(row, ""), row["planned_op"], marked(row, "planned_"),
          f"from {row['planned_from_step']}" if row["planned_moved"] else NOTHING, frees(row, "planned_")) for row in shown],
        strong_rows={number for number, row in enumerate(shown) if row["planned_moved"]})
    if not is_step(run):
        first = next((row["planned_op"] for row in shown if row["planned_moved"]), None)
        suggest("graph", store, run_id, "--deps", str(first if first is not None else 0))


def graph(store: StorePath,
          op: Annotated[str, typer.Option("--deps", metavar="OP", help="The op, by its number or its name.")],
          run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """What an op waits for, and what waits for it.

    Each with the reason: it reads what the other wrote, or writes what the other read or wrote, and which tensor that
    is; or it takes a value, such as a view or a size, that the other made, or what may share its memory in another run;
    both draw random numbers; both have effects; or one is a barrier, as nothing is known of it.
    """
    with Store(store) as opened:
        run = opened.run(run_id)
        found = find_op(opened, run, op)
        before, after = around(opened, run, found["op"])
    before = cut(before, limit, 0, as_json or as_csv, "ops that it waits for")
    after = cut(after, limit, 0, as_json or as_csv, "ops that wait for it")
    if as_json:
        return print_json({"run": run, "op": found, "waits_for": before, "waited_for_by": after})
    if as_csv:
        return print_csv([{"side": side, **row} for side, rows in (("waits for", before), ("waited for by", after))
                          for row in rows], ("side", *_COLUMNS))

    note_run(run)
    where = f" in {found['scope']}" if found["scope"] else ""
    line = f" at {found['source']}" if found["source"] else ""
    step = f", step {found['planned_step']} as planned" if found["planned_step"] is not None else ""
    print(printable(f"op {found['op']} {found['kind']} '{found['name']}'{where}{line}{step}"))
    for title, rows in (("waits for", before), ("waited for by", after)):
        print()
        print(f"{title}:" if rows else f"{title} no op")
        if rows:
            print_table([">op", "kind", "name", "reason", "tensor", ">size"],
                        [(row["op"], row["kind"], row["name"], row["reason"], row["tensor_name"], size(row["size_bytes"]))
                         for row in rows])
    suggest("order", store, run_id)


_COLUMNS = ("op", "name", "kind", "scope", "source", "reason", "tensor", "tensor_name", "size_bytes")


def marked(row: Row, side: str) -> str:
    return f"{row[side + 'name']} (update)" if row[side + "update"] else row[side + "name"]


def frees(row: Row, side: str) -> str:
    names = [name or "unnamed" for name in row[side + "frees"]]
    if not names:
        return NOTHING
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}: {size(row[side + 'freed_bytes'])}"
