# SPDX-License-Identifier: Apache-2.0
"""Explains a trace: its peak, what its allocator held and why, and what it would have needed."""

from dataclasses import asdict, dataclass
from typing import Any

from stowage.snapshots.fragmentation import pins, pools, totals
from stowage.snapshots.frames import CallSites
from stowage.snapshots.peak import by_call_site, find_peak
from stowage.snapshots.pickles import SnapshotError
from stowage.snapshots.planning import MOST_BLOCKS, Replay, lay_out, replay, reserved
from stowage.snapshots.reading import read_snapshot
from stowage.snapshots.trace import Trace
from stowage.snapshots.trace_csv import read_trace
from stowage.solving import SolverError

Row = dict[str, Any]


@dataclass
class Choice:
    """What of a file to explain, and what the file cannot tell. Sizes in bytes, events half-open."""

    device: int | None = None
    first: int | None = None
    end: int | None = None
    depth: int = 1
    max_entries: int | None = None
    capacity_bytes: int | None = None  # of the simulated device
    used_bytes: int | None = None  # of the device, at the end
    total_bytes: int | None = None  # of the device
    plan: bool | None = None  # None: where it takes seconds
    deadline_ms: int = 2000


def read_traces(path: str, choice: Choice) -> list[Trace]:
    """Of a snapshot, or of a trace if the file's name ends in .csv: the devices and events chosen."""
    traces = [read_trace(path)] if path.lower().endswith(".csv") else read_snapshot(path, choice.max_entries)
    if choice.device is not None:
        devices = ", ".join(str(trace.device) for trace in traces)
        traces = [trace for trace in traces if trace.device == choice.device]
        if not traces:
            raise SnapshotError(f"cannot find device {choice.device} in '{path}': it has {devices}; choose one of these")
    parts = [trace.part(choice.first, choice.end) for trace in traces]
    for trace, part in zip(traces, parts, strict=True):
        if part is not trace and part.first >= part.end:
            end = "the last" if choice.end is None else choice.end
            raise SnapshotError(f"cannot show events {choice.first or 0} to {end} of device {trace.device} in '{path}': it "
                                f"has {trace.end}; give --from below --to and below that")
    return parts


def explain(trace: Trace, name: str, choice: Choice) -> Row:
    """All of it, in bytes; lists are sorted, what matters most first."""
    names = CallSites(choice.depth)
    peak = find_peak(trace)
    found: Row = {
        "device": trace.device, "from": trace.first, "to": trace.end, "blocks": len(trace.blocks),
        "truncated": trace.truncated, "notes": trace.notes,
        "peak": {"event": peak.event, "live_bytes": peak.live_bytes, "rounded_bytes": peak.rounded_bytes,
                 "before_bytes": peak.before_bytes, "awaiting_bytes": peak.awaiting_bytes,
                 "reserved_bytes": peak.reserved_bytes, "call_sites": by_call_site(peak.blocks, names)},
        "most_reserved_bytes": trace.most_reserved(),
        "memory": None, "pools": [], "pinned": [],
        "ran_out": [{**asdict(failure), "reserved_bytes": trace.reserved_at(failure.event)} for failure in trace.ran_out],
        "outside": outside(trace, choice),
    }
    if trace.segments is not None:
        found |= {"memory": totals(trace.segments), "pools": pools(trace.segments), "pinned": pins(trace.segments, names)}
    return {**found, "plan": None if choice.plan is False else plan(trace, name, choice, names)}


def outside(trace: Trace, choice: Choice) -> Row:
    """What of the device is used and not the allocator's: contexts, libraries, other processes."""
    if choice.used_bytes is not None and trace.reserved_bytes is not None:
        return {"bytes": choice.used_bytes - trace.reserved_bytes,
                "how": "what the device had in use at the end less what was reserved"}
    told = [failure for failure in trace.ran_out if failure.device_free_bytes is not None]
    if told and choice.total_bytes is not None and trace.reserved_bytes is not None:
        last = told[-1]
        held_bytes = trace.reserved_at(last.event)
        return {"bytes": choice.total_bytes - last.device_free_bytes - held_bytes,
                "how": f"the device's memory less what was free and reserved when event {last.event} ran out"}
    if told:
        return {"bytes": None, "how": "not known: the file tells what was free when it ran out; --total gives the rest"}
    return {"bytes": None, "how": "not known: the file does not tell what the device had in use; give it with --used"}


def plan(trace: Trace, name: str, choice: Choice, names: CallSites) -> Row:
    """What the simulated allocator and a layout of stowage reserve for the trace."""
    found: Row = {"capacity_bytes": choice.capacity_bytes, "recorded_bytes": trace.most_reserved(),
                  "replay": _replayed(replay(trace, choice.capacity_bytes), choice, names),
                  "expandable": None, "layout": None, "why_no_layout": None}
    if choice.plan is None and len(trace.blocks) > MOST_BLOCKS:
        return {**found, "why_no_layout": f"{len(trace.blocks)} blocks take long; ask for it with --plan, or for fewer with "
                                          "--from and --to"}
    found["expandable"] = _replayed(replay(trace, choice.capacity_bytes, expandable=True), choice, names)
    if not trace.blocks:
        return {**found, "why_no_layout": "there is nothing to lay out"}
    try:
        streams = lay_out(trace, name, choice.deadline_ms)
    except SolverError as error:
        if choice.plan:
            raise
        return {**found, "why_no_layout": str(error)}
    reserved_bytes, bound_bytes = reserved(streams)
    return {**found, "layout": {
        "reserved_bytes": reserved_bytes, "bound_bytes": bound_bytes,
        "fits": None if choice.capacity_bytes is None else reserved_bytes <= choice.capacity_bytes,
        "streams": [asdict(stream) for stream in streams]}}


def _replayed(result: Replay, choice: Choice, names: CallSites) -> Row:
    found: Row = {"most_reserved_bytes": result.most_reserved_bytes, "end_reserved_bytes": result.reserved_bytes,
                  "failed": None, "pinned": pins(result.segments, names)}
    if result.failed is not None:
        event, block = result.failed
        memory = totals(result.segments)
        found["failed"] = {
            "event": event, "size_bytes": block.size_bytes, "call_site": names.of_block(block),
            "allocated_bytes": memory["allocated_bytes"], "free_bytes": memory["free_bytes"],
            "largest_free_bytes": memory["largest_free_bytes"],
            "unreserved_bytes": choice.capacity_bytes - result.reserved_bytes}
    return found
