# SPDX-License-Identifier: Apache-2.0
"""The command that shows live bytes over the step."""

from typing import Annotated

import typer

from stowage.commands.common import (AsCsv, AsJson, Limit, RunId, StorePath, cut, is_planned, is_step, note_run, op_name,
                                     print_csv, print_json, suggest, tensor_name)
from stowage.commands.filters import FromStep, MinSize, Scope, ToStep, choose
from stowage.commands.memory import place
from stowage.commands.plotting import columns, drawn, new_plot, unit_of
from stowage.curve import Choice, Curve
from stowage.store import Row, Store
from stowage.text import NOTHING, print_table, size, strong

#: Characters of a plot's width that its frame and the labels beside it take.
FRAME = 12


def timeline(store: StorePath,
             events: Annotated[bool, typer.Option("--events", help="Each allocation and free, in place of the curve.")] = False,
             planned: Annotated[bool, typer.Option("--planned", help="With --events: in the planned order.")] = False,
             first_step: FromStep = 0, last_step: ToStep = None, scope: Scope = "", min_size: MinSize = "0",
             run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Live bytes over the step, before and after planning.

    A curve, and a table of --limit parts of the step with the most that lives in each (JSON and CSV: of every op). With
    --scope and --min-size the bytes of these tensors alone.
    """
    choice = choose(first_step, last_step, scope, min_size)
    if planned and not events:
        raise typer.BadParameter("--planned says whose --events to show; the curve shows both orders")
    with Store(store) as opened:
        run = opened.planned_run(run_id) if planned else opened.run(run_id)
        before = Curve(opened, run, False, choice) if not planned else None
        moves = is_planned(run) and not is_step(run)
        after = Curve(opened, run, True, choice) if planned or (moves and not events) else None
    if events:
        rows = event_rows(after or before)
        shown = cut(rows, limit, 40, as_json or as_csv, "events")
        if as_json:
            return print_json({"run": run, "planned": planned, "events": shown})
        if as_csv:
            return print_csv(shown)
        note_run(run)
        print_events(shown, max((event["live_bytes"] for event in rows), default=0))
        return suggest("timeline", store, run["run_id"])

    rows = buckets(before, after, limit if limit is not None else 0 if as_json or as_csv else 20)
    if as_json:
        return print_json({"run": run, "bound_bytes": run["bound_bytes"], "before": peak_of(before),
                           "after": peak_of(after) if after else None, "buckets": rows})
    if as_csv:
        return print_csv(rows)

    note_run(run)
    bound_bytes = run["bound_bytes"] if moves and choice == Choice() else None
    print_heading("before planning", before)
    if after:
        print_heading("after planning ", after)
    elif is_planned(run):
        print("after planning   the same, as nothing moves in a step")
    if bound_bytes is not None:
        print(f"bound            {size(bound_bytes)}: no order needs less")
    print()
    if len(before.ops) > 1:
        print(plot(before, after, bound_bytes))
        print()
    print_buckets(rows, after is not None)
    suggest("tensors", store, run["run_id"], "--at", str(peak_of(before)["op"] or 0))


def peak_of(curve: Curve) -> Row:
    moment = curve.highest(curve.choice.first_step, curve.choice.last_step)
    return {name: moment[name] for name in ("live_bytes", "step", "op")}


def print_heading(when: str, curve: Curve) -> None:
    peak = peak_of(curve)
    where = "before the first op" if peak["op"] is None else (
        f"in step {peak['step']}: op {peak['op']} {place(curve.ops[peak['step']])}")
    print(strong(f"{when}  {size(peak['live_bytes'])} {where}"))


def steps_of(curve: Curve) -> tuple[int, int]:
    """The chosen steps, the second one not included."""
    last = curve.choice.last_step
    return curve.choice.first_step, len(curve.ops) if last is None else min(last + 1, len(curve.ops))


def parts(curve: Curve, count: int) -> list[tuple[int, int]]:
    """The chosen steps in `count` parts, or 0 for each on its own: the first step of each, and the one after its last."""
    first, end = steps_of(curve)
    count = min(count or end - first, end - first)
    edges = [first + (end - first) * part // count for part in range(count + 1)] if count else []
    return list(zip(edges, edges[1:]))


def buckets(before: Curve, after: Curve | None, count: int) -> list[Row]:
    """The most that lives in each part, and the op that runs then; None after planning where nothing is planned."""
    rows = []
    for first, end in parts(before, count):
        row = {"first_step": first, "end_step": end}
        for when, curve in (("before", before), ("after", after)):
            moment = curve.highest(first, end - 1) if curve else None
            op = moment["op"] if moment else None
            row |= {f"{when}_bytes": moment["live_bytes"] if moment else None, f"{when}_op": op,
                    f"{when}_kind": curve.ops[moment["step"]]["kind"] if op is not None else None}
        rows.append(row)
    return rows


def print_buckets(rows: list[Row], has_after: bool) -> None:
    sides = ("before", "after") if has_after else ("before",)
    most = {side: max((row[f"{side}_bytes"] for row in rows), default=0) for side in sides}
    headings = [">steps", *(heading for side in sides for heading in (f">{side}", f"at op"))]
    print_table(headings, [
        (f"{row['first_step']}-{row['end_step'] - 1}" if row["end_step"] - row["first_step"] > 1 else row["first_step"],
         *(cell for side in sides for cell in (size(row[f"{side}_bytes"]), op_name(row[f"{side}_op"], row[f"{side}_kind"]))))
        for row in rows],
        strong_rows={number for number, row in enumerate(rows) if any(row[f"{side}_bytes"] == most[side] for side in sides)})


def plot(before: Curve, after: Curve | None, bound_bytes: int | None) -> str:
    """Live bytes over steps, at most one value for each character of the plot's width."""
    curves = [(marker, curve) for marker, curve in ((".", before), ("o", after)) if curve]
    unit, unit_bytes = unit_of(max(peak_of(curve)["live_bytes"] for _, curve in curves))
    legend = "before" if after is None else ". before, o after"
    drawing = new_plot(f"live {unit} over steps: {legend}{', - bound' if bound_bytes is not None else ''}, P peak")
    first, end = steps_of(before)
    if bound_bytes is not None:
        drawing.plot([first, end - 1], [bound_bytes / unit_bytes] * 2, marker="-")
    for marker, curve in curves:
        spans = parts(curve, columns() - FRAME)
        drawing.plot([span[0] for span in spans],
                     [curve.highest(span[0], span[1] - 1)["live_bytes"] / unit_bytes for span in spans], marker=marker)
    for _, curve in curves:
        peak = peak_of(curve)
        drawing.scatter([max(peak["step"], first)], [peak["live_bytes"] / unit_bytes], marker="P")
    return drawn(drawing)


def event_rows(curve: Curve) -> list[Row]:
    kinds = {op["op"]: op["kind"] for op in curve.ops}
    names = {tensor: row["name"] for tensor, row in curve.tensors.items()}
    return [{"event": event["event"], "step": event["step"], "op": event["op"], "kind": kinds.get(event["op"]),
             "what": event["what"], "tensor": event["tensor"], "name": names.get(event["tensor"]),
             "change_bytes": event["change_bytes"], "live_bytes": event["live_bytes"]}
            for event in curve.events if curve.choice.has_step(max(event["step"], 0))]


def print_events(events: list[Row], most_bytes: int) -> None:
    print_table(
        [">event", ">step", "op", "what", ">change", ">live", "tensor"],
        [(event["event"], event["step"], op_name(event["op"], event["kind"]), event["what"], size(event["change_bytes"]),
          size(event["live_bytes"]), tensor_name(event) if event["tensor"] is not None else NOTHING) for event in events],
        strong_rows={number for number, event in enumerate(events) if event["live_bytes"] == most_bytes})
