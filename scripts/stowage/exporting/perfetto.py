# SPDX-License-Identifier: Apache-2.0
"""Makes a trace of a run for ui.perfetto.dev: JSON in the Trace Event Format of Chrome. Needs no torch.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU; times are in microseconds there.
"""

import json
from typing import Any

from stowage.exporting.lives import Lives
from stowage.roles import phases_of
from stowage.store import Row, Store
from stowage.text import size

#: Threads of a trace: those of the ops, then those of the streams.
PHASES = ("forward", "backward", "update", "ops")
FIRST_STREAM = 100

Event = dict[str, Any]


def encode(store: Store, lives: list[Lives]) -> bytes:
    """A process of the trace for each of `lives`, which are of one run; kernels and copies beside the recorded ops."""
    run = lives[0].run
    end_ns = max(each.end_ns for each in lives)
    events: list[Event] = []
    for process, each in enumerate(lives, 1):
        events += _name_process(process, each)
        events += _slices(process, each, phase_names(store, each.run))
        events += _counters(process, each, end_ns)
        if not each.planned:
            events += _device_slices(process, store, run)
    about = {name: run[name] for name in ("run_id", "name", "device", "torch_version", "stowage_version", "clock")}
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, separators=(",", ":")).encode()


def phase_names(store: Store, run: Row) -> dict[int, str]:
    """Of each op of a captured step "forward", "backward" or "update"; nothing of other runs."""
    phases = phases_of(store, run)
    if phases is None:
        return {}
    # The order of a graph that a budget has made is not that of its program.
    ops = store.query("SELECT op, coalesce(program_op, op) AS program_op FROM ops WHERE run_id = ?", run["run_id"])
    end = next(op["program_op"] for op in ops if op["op"] == phases.forward_end_op)
    return {op["op"]: "update" if op["op"] in phases.updates else "forward" if op["program_op"] <= end else "backward"
            for op in ops}


def _name_process(process: int, lives: Lives) -> list[Event]:
    how = "ops in planned order, one after another" if lives.planned else "ops as they ran"
    name = f"run {lives.run['run_id']} '{lives.run['name']}', {'planned' if lives.planned else 'recorded'}"
    return [_metadata("process_name", process, 0, name=name), _metadata("process_labels", process, 0, labels=how),
            _metadata("process_sort_index", process, 0, sort_index=process)]


def _slices(process: int, lives: Lives, phases: dict[int, str]) -> list[Event]:
    """Ops on a thread for each phase. What overlaps what its thread has, as ops of other threads may, gets one of its own."""
    events: list[Event] = []
    ends: dict[tuple[int, int], int] = {}  # by phase and number of the thread
    for op in sorted(lives.ops, key=lambda op: op["start_ns"]):
        phase = PHASES.index(phases.get(op["op"], "ops"))
        number = 0
        while ends.get((phase, number), op["start_ns"]) > op["start_ns"]:
            number += 1
        ends[phase, number] = op["start_ns"] + op["duration_ns"]
        about = {name: op[name] for name in ("op", "step", "name", "scope", "source", "allocated_bytes", "freed_bytes",
                                             "live_bytes") if op[name] != ""}
        events.append(_slice(process, _thread(phase, number), op["kind"], PHASES[phase], op["start_ns"], op["duration_ns"],
                             about))
    names = [_metadata("thread_name", process, _thread(phase, number), name=PHASES[phase] + f" {number + 1}" * (number > 0))
             for phase, number in ends]
    return [*names, *(_metadata("thread_sort_index", process, _thread(*end), sort_index=_thread(*end)) for end in ends),
            *events]


def _thread(phase: int, number: int) -> int:
    return 1 + phase + len(PHASES) * number


def _device_slices(process: int, store: Store, run: Row) -> list[Event]:
    run_id = run["run_id"]
    rows = store.query("SELECT name, op, start_ns, duration_ns, stream, NULL AS size_bytes FROM kernels WHERE run_id = ?1 "
                       "UNION ALL SELECT 'copy ' || kind, op, start_ns, duration_ns, stream, size_bytes FROM copies "
                       "WHERE run_id = ?1 ORDER BY start_ns", run_id)
    streams = {stream: FIRST_STREAM + place for place, stream in enumerate(sorted({row["stream"] for row in rows}))}
    events = []
    for stream, thread in streams.items():
        events += [_metadata("thread_name", process, thread, name=f"stream {stream}"),
                   _metadata("thread_sort_index", process, thread, sort_index=thread)]
    for row in rows:
        about = {name: row[name] for name in ("op", "size_bytes") if row[name] is not None}
        events.append(_slice(process, streams[row["stream"]], row["name"], "device", row["start_ns"], row["duration_ns"],
                             about))
    return events


def _counters(process: int, lives: Lives, end_ns: int) -> list[Event]:
    """Live bytes after each change, the peak, and the bound below which no order can go."""
    events = [_counter(process, "live", 0, lives.start_bytes)]
    events += [_counter(process, "live", change.time_ns, change.live_bytes) for change in lives.changes]
    peak_bytes, peak_ns = lives.peak
    events.append({"ph": "i", "s": "p", "name": f"peak: {size(peak_bytes)}", "pid": process, "tid": 0,
                   "ts": _microseconds(peak_ns)})
    bound_bytes = lives.run["bound_bytes"]
    if bound_bytes is not None:
        events += [_counter(process, "bound", time_ns, bound_bytes) for time_ns in (0, end_ns)]
    return events


def _counter(process: int, name: str, time_ns: int, size_bytes: int) -> Event:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": _microseconds(time_ns), "args": {"bytes": size_bytes}}


def _slice(process: int, thread: int, name: str, category: str, start_ns: int, duration_ns: int, about: Row) -> Event:
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": _microseconds(start_ns),
            "dur": _microseconds(duration_ns), "args": about}


def _metadata(what: str, process: int, thread: int, **value: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": value}


def _microseconds(time_ns: int) -> float:
    return time_ns / 1000
