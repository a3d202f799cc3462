# SPDX-License-Identifier: Apache-2.0
"""What planning has brought so far, as text."""

from __future__ import annotations

from typing import Any

from . import plugin
from .text import NOTHING, size
from .verdict import verdicts

_HEADINGS = ("graph", "runs", "peak before", "peak after", "bound", "arena", "hits", "reused", "misses",
             "planned in")
_STEP_NOTES = ("steps ", "the plans of steps ", "a step ", "cannot plan a step ", "cannot use a plan of a step ")


def report() -> str:
    """A line for each planned graph and signature: bytes that a run has live at most, before and after planning, the
    lower bound of that peak, the arena, how many allocations of the last run came from the plan (hits), took the memory
    of a dying input (reused; they are hits too) or did not come from the plan, and the time that planning took.

    Then a line for each planned kind of step of each device. Nothing moves in a step: the peak stays, of what the step
    allocates, and the bound is that of the arena.

    Below them, where the plans came from, the store in use, what each budget took, how much of what steps allocate came
    from plans, what is not planned and why, and what the option `verify` found.
    """
    return render(plugin.status())


def render(status: dict[str, Any]) -> str:
    """The text of `report` for what the plugin's `status` says."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    notes = [f"store: {status['store']}"] if status["store"] else []
    for region in status["regions"]:
        for phase in region["phases"]:
            if phase["state"] == "planned":
                rows.append(_row(region["name"], phase))
                if phase.get("budget"):
                    notes.append(f"{region['name']}: {_about_budget(phase['peak_bytes'], phase['budget'])}")
            else:
                why = phase.get("why", "its allocations are not steady yet")
                notes.append(f"{region['name']}: {phase['state']}: {why}")
    notes += [f"{graph['name']}: left alone: {graph['why']}" for graph in status["left_alone"]]
    for device in status["steps"]:
        rows += [_step_row(device["device"], phase) for phase in device["phases"] if phase["state"] == "planned"]
        notes += _about_steps(device)
    notes += [line for line in status["notes"] if line.startswith(_STEP_NOTES)]
    notes += verdicts(status)
    if len(rows) == 1:
        return "\n".join(["nothing is planned yet", *notes])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    total = {key: sum(region[key] for region in status["regions"]) for key in ("plans_made", "plans_recalled", "runs_profiled")}
    for phase in (phase for device in status["steps"] for phase in device["phases"] if phase["state"] == "planned"):
        total["plans_made"] += phase["plans_made"]
        total["plans_recalled"] += phase["recalled"]
    lines.append(
        f"plans made: {total['plans_made']}, recalled from the store: {total['plans_recalled']}, "
        f"runs profiled: {total['runs_profiled']}"
    )
    return "\n".join(lines + notes)


def _about_budget(peak_bytes: int, budget: dict[str, Any]) -> str:
    """What running ops again has saved, and what that takes."""
    again = "1 op runs again" if budget["repeated_ops"] == 1 else f"{budget['repeated_ops']} ops run again"
    text = (f"{size(peak_bytes)} of {size(budget['unplanned_peak_bytes'])} unplanned, {again}, predicted step time "
            f"{budget['predicted_time_ratio']:.2f} (no schedule below {budget['bound_time_ratio']:.2f})")
    if budget["met"]:
        return text
    limit = f"budget of {size(budget['limit_bytes'])}" if budget["limit_bytes"] else "step time asked for"
    return f"{text}; over the {limit}"


def _step_row(device: str, phase: dict[str, Any]) -> tuple[str, ...]:
    last = phase["last"]
    return (
        f"step on {device}",
        str(phase["runs"]),
        size(phase["eager_peak_bytes"]),
        NOTHING,
        size(phase["arena_bound_bytes"]),
        size(phase["arena_bytes"]),
        str(last["hits"]["allocations"]),
        NOTHING,
        str(sum(count["allocations"] for count in last["misses"].values())),
        f"{phase['planning_ns'] / 1e9:.2f} s",
    )


def _about_steps(device: dict[str, Any]) -> list[str]:
    """How many steps of the device followed plans; and the kinds that still wait for one."""
    if device["steps"] == 0:
        return []
    share = 100 * device["planned_bytes"] / max(device["bytes"], 1)
    lines = [f"steps on {device['device']}: {device['steps']}, of which {device['planned_steps']} followed a plan; "
             f"{share:.1f} % of bytes from plans"]
    waiting = sum(phase["state"] != "planned" for phase in device["phases"])
    if waiting:
        kinds = "1 kind of step waits" if waiting == 1 else f"{waiting} kinds of step wait"
        lines.append(f"steps on {device['device']}: {kinds} to be met again; a plan takes two that are alike")
    return lines


def _row(name: str, phase: dict[str, Any]) -> tuple[str, ...]:
    last = phase["last"]
    misses = sum(count["allocations"] for count in last["misses"].values())
    budget = phase.get("budget") or {}
    return (
        name,
        str(phase["runs"]),
        size(budget.get("unplanned_peak_bytes", phase["program_peak_bytes"])),
        size(phase["peak_bytes"]),
        size(phase["bound_bytes"]),
        size(phase["arena_bytes"]),
        str(last["hits"]["allocations"]),
        str(last["reused"]["allocations"]),
        str(misses),
        f"{phase['planning_ns'] / 1e9:.2f} s",
    )
