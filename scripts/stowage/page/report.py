# SPDX-License-Identifier: Apache-2.0
"""Collects what the page of `stowage report` shows of a run, and puts the page together. Needs no torch."""

import base64
import hashlib
import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from stowage.curve import Curve
from stowage.page.explanation import explanation
from stowage.page.story import budget_of, story
from stowage.roles import CLASSES, classes_of
from stowage.store import Row, Store, moved_ops
from stowage.text import date

PAGE = Path(__file__).parent
SCRIPTS = ("dom.js", "model.js", "chart.js", "timeline.js", "layout.js", "table.js", "main.js")
_SHOWN_OF_RUN = ("run_id", "name", "kind", "complete", "dropped_records", "device", "torch_version", "stowage_version",
                 "clock", "created_unix_ns", "planned_peak_bytes", "bound_bytes", "order_status", "arena_bytes",
                 "arena_bound_bytes", "layout_status", "planning_ns")


def collect(store: Store, run: Row) -> Row:
    """What the page shows, in columns: bytes, nanoseconds, and ids as in the store. `after` is None without a plan.

    An event is an op, a tensor and the change in live bytes; those of `after` are in the planned order.
    """
    classes = classes_of(store, run)
    tensors = _tensors(store, run, classes)
    curve = Curve(store, run, planned=False)
    planned = Curve(store, run, planned=True) if run["planned_peak_bytes"] is not None else None
    order = [op["op"] for op in planned.ops] if planned else None
    before = _side(curve, classes)
    after = _side(planned, classes) if planned else None
    ops = store.query("SELECT op, name, kind, scope, source, duration_ns FROM ops WHERE run_id = ? ORDER BY op", run["run_id"])
    budget = budget_of(store, run)
    return {
        "store": Path(store.path).name,
        "date": date(run["created_unix_ns"]),
        "run": {name: run[name] for name in _SHOWN_OF_RUN},
        "unplanned_peak_bytes": budget["unplanned_peak_bytes"] if budget else before["peak_bytes"],
        "classes": [name for name in CLASSES if name in classes.values()],
        "ops": _columns(ops, ("name", "kind", "scope", "source", "duration_ns")),
        "tensors": _columns(tensors, ("name", "class", "size_bytes", "dtype", "shape", "made_by", "last_use")),
        "start": sorted(curve.start),
        "before": before,
        "after": after,
        "order": order,
        "moved": sorted(moved_ops(order or [])),
        "slots": _slots(store, run, after) if after else None,
        "story": story(run, before, after, budget, ops),
        "explanation": explanation(store, run),
    }


def _tensors(store: Store, run: Row, classes: dict[int, str]) -> list[Row]:
    """By id, which numbers them from 0; `made_by` and `last_use` are ops, the latter in the planned order if there is one."""
    rows = store.query("SELECT tensor, name, kind, size_bytes, dtype, shape FROM tensors WHERE run_id = ? ORDER BY tensor",
                       run["run_id"])
    makers = store.query("SELECT tensor, op FROM allocations WHERE run_id = ? ORDER BY allocation DESC", run["run_id"])
    made_by = {row["tensor"]: row["op"] for row in makers}
    last_uses = store.query("""
        SELECT u.tensor, u.op, max(coalesce(p.step, u.op)) AS step
        FROM uses AS u LEFT JOIN plan_order AS p ON p.run_id = u.run_id AND p.op = u.op
        WHERE u.run_id = ? GROUP BY u.tensor""", run["run_id"])
    last_use = {row["tensor"]: row["op"] for row in last_uses}
    return [{**row, "class": classes[row["tensor"]], "made_by": made_by.get(row["tensor"]),
             "last_use": last_use.get(row["tensor"])} for row in rows]


def _side(curve: Curve, classes: dict[int, str]) -> Row:
    """A step before or after planning: its events, and what lives at the first at which most bytes do; -1 is the start."""
    moment = curve.highest(0)
    at_peak = curve.live_at(moment["number"])
    by_class: dict[str, int] = defaultdict(int)
    for tensor in at_peak:
        by_class[classes[tensor["tensor"]]] += tensor["size_bytes"]
    return {
        **_columns(curve.events[1:], ("op", "tensor", "change_bytes")),
        "peak_bytes": moment["live_bytes"],
        "peak_event": moment["number"] - 1,
        "peak_op": moment["op"],
        "peak_classes": dict(by_class),
        "peak_tensors": sorted(tensor["tensor"] for tensor in at_peak),
    }


def _slots(store: Store, run: Row, after: Row) -> Row:
    """Slots, and the events of `after` between which each is taken: [begin, end), None for the ends of the step.

    What the step before left lies where it lies in every second step, from the step's begin on.
    """
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number, (tensor, change_bytes) in enumerate(zip(after["tensor"], after["change_bytes"], strict=True)):
        (begins if change_bytes > 0 else ends)[tensor] = number
    rows = []
    for slot in store.query("SELECT tensor, offset_bytes, size_bytes, other_offset_bytes FROM slots WHERE run_id = ? "
                            "ORDER BY slot", run["run_id"]):
        begin, end = begins.get(slot["tensor"]), ends.get(slot["tensor"])
        if begin is not None and end is not None and end < begin:
            other = slot["other_offset_bytes"]
            rows.append({**slot, "offset_bytes": slot["offset_bytes"] if other is None else other, "begin": None, "end": end})
            end = None
        rows.append({**slot, "begin": begin, "end": end})
    return _columns(rows, ("tensor", "offset_bytes", "size_bytes", "begin", "end"))


def _columns(rows: list[Row], names: Iterable[str]) -> Row:
    return {name: [row[name] for row in rows] for name in names}


def render(data: Row) -> str:
    """The page: one file that loads nothing, in which no text of the store is anything but text."""
    style = (PAGE / "report.css").read_text()
    script = '"use strict";\n' + "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    parts = {
        "title": html.escape(data["run"]["name"]),
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        # JSON in which nothing can end the element that it is in.
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    template = (PAGE / "report.html").read_text()
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], template)


def _hash(text: str) -> str:
    """As a Content-Security-Policy names what may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
