# SPDX-License-Identifier: Apache-2.0
"""The commands that show what lives, and when: tensors, peak."""

from typing import Annotated

import typer

from stowage.commands.common import (AsCsv, AsJson, Limit, RunId, StorePath, cut, is_planned, is_step, note_mismatch,
                                     note_run, op_name, print_csv, print_json, suggest, tensor_name)
from stowage.commands.filters import FromStep, MinSize, Scope, ToStep, choose
from stowage.curve import Choice, Curve
from stowage.roles import classes_of
from stowage.store import Row, Store
from stowage.text import print_table, printable, size, strong


def tensors(store: StorePath,
            at: Annotated[int | None, typer.Option("--at", min=0, metavar="OP", help="Only what lives as this op runs.")] = None,
            planned: Annotated[bool, typer.Option("--planned", help="With --at: in the planned order.")] = False,
            first_step: FromStep = 0, last_step: ToStep = None, scope: Scope = "", min_size: MinSize = "0",
            run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Tensors, biggest first, and how long they live.

    As they lived in the recorded run: which op allocates each, which uses it last. With --at OP those that live when most
    does while that op runs; with --from and --to those that live while one of these ops runs.
    """
    choice = choose(first_step, last_step, scope, min_size)
    if planned and at is None:
        raise typer.BadParameter("--planned says when what --at OP asks for is live; give both")
    moment = None
    with Store(store) as opened:
        run = opened.planned_run(run_id) if planned else opened.run(run_id)
        classes = classes_of(opened, run)
        rows = [{**tensor, "class": classes[tensor["tensor"]]} for tensor in opened.tensors(run)]
        if at is not None:
            curve = Curve(opened, run, planned)
            moment = curve.at(at)
            rows = living(rows, curve.live_at(moment["number"]))
    rows = [tensor for tensor in rows if choice.has(tensor["scope"] or "", tensor["size_bytes"]) and is_within(tensor, choice)]
    shown = cut(rows, limit, 20, as_json or as_csv, "tensors")
    if as_json:
        where = {} if moment is None else {"planned": planned, "at": {key: moment[key] for key in AT}}
        return print_json({"run": run, **where, "tensors": shown})
    if as_csv:
        return print_csv(shown)

    note_run(run)
    if moment:
        print(strong(f"{size(moment['live_bytes'])} live in step {moment['step']}: op {at} {place(moment)}"))
    shows_scope = any(tensor["scope"] for tensor in shown)
    print_table(
        [">size", "tensor", "class", "lives", "allocated by", *(["scope"] if shows_scope else []), "last used by", "dtype",
         "shape"],
        [(size(tensor["size_bytes"]), tensor_name(tensor), tensor["class"], lives(tensor),
          op_name(tensor["allocate_op"], tensor["allocate_kind"]), *([tensor["scope"] or ""] if shows_scope else []),
          op_name(tensor["last_use_op"], tensor["last_use_kind"]), tensor["dtype"], tensor["shape"]) for tensor in shown])
    suggest("ops", store, run_id)


#: Of the moment of `--at`, in JSON.
AT = ("step", "op", "name", "kind", "scope", "source", "live_bytes")


def living(rows: list[Row], live: list[Row]) -> list[Row]:
    """A row for each tensor that lives, with the bytes that it has live: one may live twice at once."""
    size_of = {tensor["tensor"]: tensor["size_bytes"] for tensor in live}
    found = {tensor["tensor"]: {**tensor, "size_bytes": size_of[tensor["tensor"]]} for tensor in rows
             if tensor["tensor"] in size_of}
    return sorted(found.values(), key=lambda tensor: (-tensor["size_bytes"], tensor["tensor"]))


def is_within(tensor: Row, choice: Choice) -> bool:
    """Whether it lives while an op of the chosen steps runs, in program order."""
    first, last = tensor["allocate_op"], tensor["free_op"]
    return ((first is None or choice.last_step is None or first <= choice.last_step)
            and (last is None or last >= choice.first_step)) or (
                tensor["next_free_op"] is not None and tensor["next_free_op"] >= choice.first_step)


def peak(store: StorePath,
         first_step: FromStep = 0, last_step: ToStep = None, scope: Scope = "", min_size: MinSize = "0",
         run_id: RunId = None, as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Where most memory is live, and what lives there.

    Before and after planning, with the bound below which no order can go. With --from and --to the peak of that part of
    either order; with --scope and --min-size that of these tensors alone.
    """
    choice = choose(first_step, last_step, scope, min_size)
    with Store(store) as opened:
        run = opened.run(run_id)
        classes = classes_of(opened, run)
        before = with_classes(Curve(opened, run, False, choice).peak(), classes)
        after = with_classes(Curve(opened, run, True, choice).peak(), classes) if is_planned(run) else None
    for side in filter(None, (before, after)):
        side["tensors"] = cut(side["tensors"], limit, 10, as_json or as_csv, "tensors")
    if as_json:
        return print_json({"run": run, "before": before, "after": after, "bound_bytes": run["bound_bytes"]})
    if as_csv:
        return print_csv([{"when": when, **tensor} for when, side in (("before", before), ("after", after))
                          for tensor in (side["tensors"] if side else ())])

    note_run(run)
    if choice == Choice():
        note_mismatch("the record", before, run["unplanned_peak_bytes"])
        if after:
            note_mismatch("the plan", after, run["planned_peak_bytes"])
    print_peak("before planning", before)
    if after and is_step(run):
        print()
        print(f"after planning: the same, as nothing moves in a step; arena {size(run['arena_bytes'])}, "
              f"bound {size(run['arena_bound_bytes'])}")
    elif after:
        print()
        print_peak("after planning", after)
        if choice == Choice():
            print()
            print(f"bound: no order needs less than {size(run['bound_bytes'])}")
    suggest("timeline", store, run_id)


def place(op: Row) -> str:
    """An op's kind, name and where it comes from."""
    origin = f" at {op['source']}" if op["source"] else f" in {op['scope']}" if op["scope"] else ""
    return printable(f"{op['kind']} '{op['name']}'{origin}")


def lives(tensor: Row) -> str:
    if tensor["allocate_op"] is None:
        return "throughout"
    end = "end" if tensor["free_op"] is None else f"op {tensor['free_op']}"
    if tensor["next_free_op"] is not None:
        end = f"op {tensor['next_free_op']} of the next step"
    return f"op {tensor['allocate_op']} to {end}"


def print_peak(when: str, peak: Row) -> None:
    where = "before the first op"
    if peak["op"] is not None:
        where = f"in step {peak['step']}: op {peak['op']} {place(peak)}"
    print(strong(f"{when}: {size(peak['live_bytes'])} {where}"))
    print_table([">size", ">tensors", "class"],
                [(size(each["size_bytes"]), each["tensors"], each["class"]) for each in peak["by_class"]])
    print("biggest:")
    print_table([">size", "tensor", "class"],
                [(size(tensor["size_bytes"]), tensor_name(tensor), tensor["class"]) for tensor in peak["tensors"]])


def with_classes(peak: Row, classes: dict[int, str]) -> Row:
    """The peak, with the class of each tensor and the sum of each class, biggest first."""
    tensors = [{**tensor, "class": classes[tensor["tensor"]]} for tensor in peak["tensors"]]
    by_class: dict[str, Row] = {}
    for tensor in tensors:
        found = by_class.setdefault(tensor["class"], {"class": tensor["class"], "tensors": 0, "size_bytes": 0})
        found["tensors"] += 1
        found["size_bytes"] += tensor["size_bytes"]
    return {**peak, "by_class": sorted(by_class.values(), key=lambda each: -each["size_bytes"]), "tensors": tensors}
