# SPDX-License-Identifier: Apache-2.0
"""The command that explains a snapshot of torch's CUDA allocator, or a trace of allocations."""

import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from stowage.commands.common import AsCsv, AsJson, Limit, cut, note, print_csv, print_json, suggest, working
from stowage.snapshots.explaining import Choice, explain, read_traces
from stowage.snapshots.peak import call_sites, compare
from stowage.snapshots.pickles import without_collector
from stowage.store import Row
from stowage.text import NOTHING, print_table, printable, size

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
#: A bigger file takes more than two seconds.
_LONG_BYTES = 50 << 20


def parse_size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]iB)?B?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise typer.BadParameter(f"'{text}' is no size; give bytes, or for instance 40GiB")
    return int(float(found[1]) * _UNITS[(found[2] or "").upper()]) if found[2] else int(float(found[1]))


def snapshot(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Of torch.cuda.memory._dump_snapshot, or a trace: NAME.csv.")],
    first: Annotated[int | None, typer.Option("--from", min=0, metavar="EVENT", help="Only this event and later.")] = None,
    end: Annotated[int | None, typer.Option("--to", min=0, metavar="EVENT", help="Only events before this one.")] = None,
    device: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this device.")] = None,
    depth: Annotated[int, typer.Option(min=1, metavar="N", help="Frames outside torch that name a call site.")] = 1,
    against: Annotated[str | None, typer.Option(metavar="FILE", help="Compare two peaks by call site.")] = None,
    capacity: Annotated[int | None, typer.Option(parser=parse_size, metavar="SIZE",
                                                 help="Memory of the device that the trace is replayed on: 40GiB.")] = None,
    used: Annotated[int | None, typer.Option(parser=parse_size, metavar="SIZE",
                                             help="What the device had in use at the end, as nvidia-smi shows.")] = None,
    total: Annotated[int | None, typer.Option(parser=parse_size, metavar="SIZE",
                                              help="Memory of the device that the file is of.")] = None,
    max_entries: Annotated[int | None, typer.Option(min=1, metavar="N",
                                                    help="What _record_memory_history was given.")] = None,
    plan: Annotated[bool | None, typer.Option("--plan/--no-plan",
                                              help="Replay it and lay it out; else a layout of few blocks only.")] = None,
    as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None,
) -> None:
    """Explains a snapshot of torch's CUDA memory: its peak, what was reserved for what, and what a plan would reserve.

    The file is read without running code from it. A trace is a text file with a line alloc,NAME,BYTES[,STREAM] or
    free,NAME for each event. --csv prints the peak by call site.
    """
    choice = Choice(device, first, end, depth, max_entries, capacity, used, total, plan)
    with without_collector():
        if against is not None:
            return print_comparison(file, against, choice, as_json, as_csv, limit)
        with patience(file):
            traces = read_traces(file, choice)
            found = [explain(trace, file, choice) for trace in traces]
    if as_csv:
        rows = [{"device": row["device"], **site} for row in found for site in row["peak"]["call_sites"]]
        return print_csv(cut(rows, limit, 0, True, "call sites"), ("device", "call_site", "size_bytes", "blocks"))
    for row in found:
        row["peak"]["call_sites"] = cut(row["peak"]["call_sites"], limit, 10, as_json, "call sites")
        row["pinned"] = cut(row["pinned"], limit, 5, as_json, "pinned segments")
        row["ran_out"] = cut(row["ran_out"], limit, 5, as_json, "failed requests")
        for result in filter(None, ((row["plan"] or {}).get(kind) for kind in ("replay", "expandable"))):
            result["pinned"] = result["pinned"][:limit or (None if as_json or limit == 0 else 5)]
    if as_json:
        return print_json({"file": file, "devices": found})
    for number, row in enumerate(found):
        print("\n" if number else "", end="")
        print_device(row)
    suggest("snapshot", file, None, "--depth", str(depth + 2))


def print_comparison(file: str, against: str, choice: Choice, as_json: bool, as_csv: bool, limit: int | None) -> None:
    sides = []
    for path in (file, against):
        with patience(path):
            sides.append({trace.device: call_sites(trace, choice.depth) for trace in read_traces(path, choice)})
    rows = [{"device": device, **row} for device in sorted({*sides[0], *sides[1]})
            for row in compare(sides[0].get(device, []), sides[1].get(device, []))]
    shown = cut(rows, limit, 20, as_json or as_csv, "call sites")
    if as_json:
        return print_json({"before": file, "after": against, "call_sites": shown})
    if as_csv:
        return print_csv(shown, ("device", "call_site", "before_bytes", "after_bytes", "change_bytes"))
    for name, path in (("before", file), ("after", against)):
        print(f"{name:<7} {size(sum(row[f'{name}_bytes'] for row in rows))} at the peak of {printable(path)}")
    print()
    print_table([">before", ">after", ">change", ">device", "call site"],
                [(size(row["before_bytes"]), size(row["after_bytes"]), change(row["change_bytes"]), row["device"],
                  row["call_site"]) for row in shown])
    suggest("snapshot", against)


def patience(path: str) -> AbstractContextManager[object]:
    is_big = os.path.isfile(path) and os.path.getsize(path) >= _LONG_BYTES
    return working("reading the file") if is_big else nullcontext()


def change(bytes_: int) -> str:
    return f"+{size(bytes_)}" if bytes_ > 0 else size(bytes_)


def print_device(row: Row) -> None:
    peak = row["peak"]
    if row["truncated"]:
        note(f"device {row['device']}: {row['truncated']}")
    for text in row["notes"]:
        note(f"device {row['device']}: {text}")
    events = f"events {row['from']} to {row['to']}" if row["from"] else f"{row['to']} events"
    where = "before the first event" if peak["event"] is None else f"at event {peak['event']}"
    print(f"device {row['device']}: {events}, {row['blocks']} blocks")
    print(f"peak       {size(peak['live_bytes'])} {where}, {size(peak['rounded_bytes'])} in the allocator's units")
    print(f"  before   {size(peak['before_bytes'])} of it was live before the first event")
    if peak["awaiting_bytes"]:
        print(f"  awaiting {size(peak['awaiting_bytes'])} of it was freed, while another stream used it")
    if peak["reserved_bytes"] is not None:
        print(f"  reserved {size(peak['reserved_bytes'])} then, {size(row['most_reserved_bytes'])} at most")
    print_table([">size", ">blocks", "call site"],
                [(size(site["size_bytes"]), site["blocks"], site["call_site"]) for site in peak["call_sites"]])
    if row["memory"] is not None:
        print_memory(row)
    for failure in row["ran_out"]:
        free = "" if failure["device_free_bytes"] is None else f", {size(failure['device_free_bytes'])} free on the device"
        print(f"ran out    at event {failure['event']}: asked for {size(failure['size_bytes'])}, "
              f"{size(failure['reserved_bytes'])} reserved{free}")
    outside_bytes = row["outside"]["bytes"]
    print(f"outside    {'' if outside_bytes is None else size(outside_bytes) + ': '}{row['outside']['how']}")
    if row["plan"] is not None:
        print()
        print_plan(row["plan"])


def print_memory(row: Row) -> None:
    memory = row["memory"]
    awaiting = f", {size(memory['awaiting_bytes'])} awaiting other streams" if memory["awaiting_bytes"] else ""
    print()
    print(f"at the end {size(memory['reserved_bytes'])} reserved, {size(memory['allocated_bytes'])} allocated{awaiting}, "
          f"{size(memory['free_bytes'])} free: {size(memory['releasable_bytes'])} could be given back, "
          f"{size(memory['pinned_bytes'])} is pinned by live blocks")
    print_table([">reserved", ">allocated", ">free", ">pinned", ">largest free", ">segments", "stream", "pool"],
                [(size(pool["reserved_bytes"]), size(pool["allocated_bytes"]), size(pool["free_bytes"]),
                  size(pool["pinned_bytes"]), size(pool["largest_free_bytes"]), pool["segments"], hex(pool["stream"]),
                  pool["pool"]) for pool in row["pools"]])
    print_pins(row["pinned"], "  ")


def print_pins(pinned: list[Row], indent: str) -> None:
    for pin in pinned:
        held = "; ".join(f"{size(site['size_bytes'])} {site['call_site']}" for site in pin["held_by"][:4])
        more = f"; and {len(pin['held_by']) - 4} more" if len(pin["held_by"]) > 4 else ""
        print(f"{indent}{size(pin['pinned_bytes'])} free in the segment of {size(pin['segment_bytes'])} at "
              f"{hex(pin['address'])} is pinned by {printable(held)}{more}")


def print_plan(plan: Row) -> None:
    on = "" if plan["capacity_bytes"] is None else f" on a device of {size(plan['capacity_bytes'])}"
    print(f"what this trace needs{on}:")
    if plan["recorded_bytes"] is not None:
        print(f"  recorded    {size(plan['recorded_bytes'])} reserved")
    for kind, label in (("replay", "replayed"), ("expandable", "expandable")):
        if plan[kind] is not None:
            print_replay(label, plan[kind])
    layout = plan["layout"]
    if layout is None:
        return print(f"  planned     {NOTHING} ({printable(plan['why_no_layout'])})")
    fits = {None: "", True: ", which fits", False: ", which does not fit"}[layout["fits"]]
    statuses = ", ".join(sorted({stream["status"] for stream in layout["streams"]}))
    print(f"  planned     {size(layout['reserved_bytes'])} by a layout of stowage{fits}; {statuses}")
    print(f"  bound       {size(layout['bound_bytes'])}: no layout needs less")


def print_replay(label: str, result: Row) -> None:
    failed = result["failed"]
    if failed is None:
        return print(f"  {label:<11} {size(result['most_reserved_bytes'])} reserved by the simulated allocator")
    where = "before the first event" if failed["event"] is None else f"at event {failed['event']}"
    print(f"  {label:<11} runs out {where}: {printable(failed['call_site'])} asks for {size(failed['size_bytes'])}; of "
          f"{size(failed['free_bytes'] + failed['unreserved_bytes'])} that nobody uses, "
          f"{size(failed['unreserved_bytes'])} is not reserved and the largest free block is "
          f"{size(failed['largest_free_bytes'])}")
    print_pins(result["pinned"], "    ")
