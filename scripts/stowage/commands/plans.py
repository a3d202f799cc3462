# SPDX-License-Identifier: Apache-2.0
"""The commands that show what was planned: plan; and sql, which answers any other question."""

from typing import Annotated

import typer

from stowage.commands.common import (AsCsv, AsJson, Limit, RunId, StorePath, cut, note_run, print_csv, print_json,
                                     suggest, tensor_name)
from stowage.store import Row, Store
from stowage.text import NOTHING, duration, print_table, size


def plan(store: StorePath,
         only_slots: Annotated[bool, typer.Option("--slots", help="Only where tensors lie; in CSV too.")] = False,
         run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """The planned order, its slots, and the points where tensors begin and end.

    Says which ops moved: the fewest whose moving turns program order into the planned order.
    """
    with Store(store) as opened:
        run = opened.planned_run(run_id)
        found = opened.plan(run)
    moved = sum(op["moved"] for op in found["order"])
    op_count = len(found["order"])
    order = [] if only_slots else cut(found["order"], limit, 0, as_json or as_csv, "ops")
    slots = [] if as_csv and not only_slots else cut(found["slots"], limit, 0, as_json or as_csv, "slots")
    if as_json:
        return print_json({"run": run, "moved_ops": moved, **({} if only_slots else {"order": order}), "slots": slots})
    if as_csv:
        return print_csv(slots if only_slots else order)

    note_run(run)
    print(f"order   {run['order_status']}: peak {size(run['planned_peak_bytes'])}, bound {size(run['bound_bytes'])}, "
          f"program order {size(run['program_peak_bytes'])}; {moved} of {op_count} ops moved")
    print(f"layout  {run['layout_status']}: arena {size(run['arena_bytes'])}, bound {size(run['arena_bound_bytes'])}")
    print(f"time    {duration(run['planning_ns'])}")
    print()
    if not only_slots:
        print_order(order)
        print()
    print_slots(slots)
    suggest("ops", store, run_id, "--planned")


def print_order(order: list[Row]) -> None:
    print_table(
        [">step", ">op", "moved", "kind", "name", "places", "reuses", "frees"],
        [(op["step"], op["op"], "moved" if op["moved"] else NOTHING, op["kind"], op["name"],
          *(", ".join(map(show, op[kind])) or NOTHING
            for kind, show in (("place", tensor_name), ("reuse", reuse_name), ("free", tensor_name)))) for op in order])


def print_slots(slots: list[Row]) -> None:
    takes_turns = any(slot["other_offset_bytes"] is not None for slot in slots)
    print_table(
        [">offset", *([">in turn"] if takes_turns else []), ">size", "tensor", "kind"],
        [(size(slot["offset_bytes"]), *([size(slot["other_offset_bytes"])] if takes_turns else []),
          size(slot["size_bytes"]), tensor_name(slot), slot["kind"]) for slot in slots])


def sql(store: StorePath,
        query: Annotated[str, typer.Argument(metavar="QUERY", help="One SQL statement; the store is only read.")],
        as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Answers a question in SQL.

    Views: lifetimes, timeline, peak, live_at_peak, planned_timeline, planned_peak, live_at_planned_peak, size_sources,
    op_device_time.
    """
    with Store(store) as opened:
        columns, rows = opened.user_query(query)
    shown = cut(rows, limit, 0, as_json or as_csv, "rows")
    if as_json:
        return print_json(shown)
    if as_csv:
        return print_csv(shown, columns)
    print_table(columns, [tuple("NULL" if value is None else value for value in row.values()) for row in shown])
    suggest("info", store)


def reuse_name(point: Row) -> str:
    return f"{tensor_name(point)} over {point['of_name'] or 'tensor ' + str(point['of_tensor'])}"
