# SPDX-License-Identifier: Apache-2.0
"""The commands that show runs as they were recorded: info, ops, kernels."""

from typing import Annotated

import typer

from stowage.commands.common import (AsCsv, AsJson, Limit, RunId, StorePath, cut, disagreement, is_planned, is_step,
                                     note, note_run, op_name, print_csv, print_json, suggest)
from stowage.commands.filters import FromStep, MinSize, Scope, ToStep, choose
from stowage.store import Row, Store
from stowage.text import NOTHING, date, duration, print_table, printable, size


def info(store: StorePath, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """What made the store, its runs and their plans."""
    with Store(store) as opened:
        context, runs = opened.context(), opened.runs()
    if not runs:
        note("the store has no runs yet; profile a run into it")
    newest = cut(runs[::-1], limit, 20, as_json or as_csv, "runs")[::-1]
    if as_json:
        return print_json({**context, "runs": newest})
    if as_csv:
        return print_csv(newest)

    print(f"store    {printable(store)} (schema {context['schema']}, {size(context['size_bytes'])})")
    for label, name in (("stowage", "stowage_version"), ("torch", "torch_version"), ("device", "device"),
                        ("clock", "clock")):
        print(f"{label:<8} {printable(', '.join(context[name])) or NOTHING}")
    print(f"sizes    {size_source(context)}")
    print(f"dropped  {context['dropped_records']} records")
    print(f"date     {date(context['last_unix_ns'])}")
    print()
    print_table(
        [">run", "kind", "name", ">ops", ">unplanned peak", ">planned peak", ">saved", ">bound", ">arena", "status"],
        [(run["run_id"], run["kind"], run["name"], run["ops"], size(run["unplanned_peak_bytes"]), size(run["planned_peak_bytes"]),
          saved(run), size(run["bound_bytes"]), size(run["arena_bytes"]), status(run)) for run in newest])
    suggest("peak", store)


def ops(store: StorePath,
        planned: Annotated[bool, typer.Option("--planned", help="In the planned order.")] = False,
        first_step: FromStep = 0, last_step: ToStep = None, scope: Scope = "", min_size: MinSize = "0",
        run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Ops in the order they run, with their memory.

    For each its time, on the device too if there is one, what it allocates and frees, and the most that lives while it
    runs. --min-size asks for ops that allocate as much.
    """
    choice = choose(first_step, last_step, scope, min_size)
    with Store(store) as opened:
        run = opened.planned_run(run_id) if planned else opened.run(run_id)
        rows = opened.ops(run, planned)
    highest = max((op["live_bytes"] for op in rows), default=0)
    rows = [op for op in rows if choice.has_step(op["step"]) and choice.has(op["scope"], op["allocated_bytes"])]
    shown = cut(rows, limit, 0, as_json or as_csv, "ops")
    if as_json:
        return print_json({"run": run, "planned": planned, "ops": shown})
    if as_csv:
        return print_csv(shown)

    note_run(run)
    on_device = any(op["device_ns"] is not None for op in rows)
    place = "scope" if is_step(run) else "source"
    print_table(
        [">step", ">op", ">time", *([">device"] if on_device else []), ">allocated", ">freed", ">live", "kind", "name",
         place],
        [(op["step"], op["op"], duration(op["duration_ns"]), *([device_time(op)] if on_device else []),
          size(op["allocated_bytes"]), size(op["freed_bytes"]), size(op["live_bytes"]), op["kind"], op["name"],
          op[place]) for op in shown],
        strong_rows={number for number, op in enumerate(shown) if op["live_bytes"] == highest})
    suggest("tensors" if planned else "plan", store, run_id)


def kernels(store: StorePath, run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False,
            limit: Limit = None) -> None:
    """Kernels on the device, most time first, and their ops.

    One line for each kernel of each op: the time of all its launches, its share in the time of all kernels, and how
    many launches there were.
    """
    with Store(store) as opened:
        run = opened.run(run_id)
        rows = opened.kernels(run)
    all_ns = sum(kernel["total_ns"] for kernel in rows)
    shown = cut(rows, limit, 20, as_json or as_csv, "kernels")
    if as_json:
        return print_json({"run": run, "kernel_ns": all_ns, "kernels": shown})
    if as_csv:
        return print_csv(shown)

    note_run(run)
    print_table(
        [">time", ">share", ">count", "op", "source", "kernel"],
        [(duration(kernel["total_ns"]), f"{100 * kernel['total_ns'] / max(all_ns, 1):.1f} %", kernel["count"],
          op_name(kernel["op"], kernel["op_kind"]), kernel["source"], kernel["name"]) for kernel in shown])
    suggest("ops", store, run_id)


def saved(run: Row) -> str:
    if not is_planned(run) or is_step(run) or run["unplanned_peak_bytes"] == 0:
        return NOTHING
    return f"{100 * (1 - run['planned_peak_bytes'] / run['unplanned_peak_bytes']):.1f} %"


def status(run: Row) -> str:
    if is_planned(run) and is_step(run):
        return f"order kept, layout {run['layout_status']}"
    if is_planned(run):
        return f"order {run['order_status']}, layout {run['layout_status']}"
    if not run["complete"]:
        return "not planned: ended early"
    if run["dropped_records"] > 0:
        return f"not planned: {run['dropped_records']} records dropped"
    return "not planned"


def size_source(context: Row) -> str:
    if context["allocations"] == 0:
        return NOTHING
    if context["compared_sizes"] == 0:
        return "as the allocator recorded them"
    text = f"CUPTI confirms {context['cupti_sizes']} of {context['allocations']} allocations"
    return text + (f"; {disagreement(context)}" if context["size_mismatches"] else "")


def device_time(op: Row) -> str:
    return NOTHING if op["device_ns"] is None else duration(op["device_ns"])
