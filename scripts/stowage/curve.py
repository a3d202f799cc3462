# SPDX-License-Identifier: Apache-2.0
"""Live bytes over a step, and what lives at a moment of it, of all tensors or of some. Needs no torch."""

import re
from collections import Counter
from dataclasses import dataclass

from stowage.store import HELD_KINDS, Row, Store, StoreError
from stowage.text import size


@dataclass(frozen=True)
class Choice:
    """What a user asks to see: of the steps [first_step, last_step], tensors or ops by module and size.

    A step is a place in an order of ops, from 0: in program order it is the op's number.
    """

    first_step: int = 0
    last_step: int | None = None
    scope: str = ""  # of a module, to which its submodules belong
    min_bytes: int = 0

    def has_step(self, step: int) -> bool:
        return self.first_step <= step and (self.last_step is None or step <= self.last_step)

    def has(self, scope: str, size_bytes: int) -> bool:
        """The scope "layer1" has "layer1" and "layer1.0", not "layer10"."""
        return size_bytes >= self.min_bytes and (
            not self.scope or bool(re.match(rf"{re.escape(self.scope)}(?!\w)", scope)))

    def is_some(self) -> bool:
        """Whether it leaves out tensors."""
        return bool(self.scope) or self.min_bytes > 0

    def asked(self) -> str:
        """Which tensors, in words."""
        of_module = [f"made in module '{self.scope}'"] if self.scope else []
        return " and ".join([*of_module, *([f"of {size(self.min_bytes)} or more"] if self.min_bytes else [])])


class Curve:
    """What a run allocates and frees, in program or planned order, and the live bytes after each such event.

    `events` begin with the start, whose op and tensor are None. Tensors that are not chosen count nowhere. `ops` are in
    the order in which they run.
    """

    def __init__(self, store: Store, run: Row, planned: bool, choice: Choice = Choice()) -> None:
        self._store, self._run_id, self.choice = store, run["run_id"], choice
        order = "plan_order" if planned else "(SELECT run_id, op, op AS step FROM ops)"
        self.ops = store.query(f"SELECT s.step, o.op, o.name, o.kind, o.scope, o.source FROM {order} AS s "
                               "JOIN ops AS o ON o.run_id = s.run_id AND o.op = s.op WHERE s.run_id = ? ORDER BY s.step",
                               self._run_id)
        self._step_of = {op["op"]: step for step, op in enumerate(self.ops)}
        if choice.first_step > max(0, len(self.ops) - 1):
            raise StoreError(f"cannot show step {choice.first_step} of run {self._run_id} in store '{store.path}': it has "
                             f"{len(self.ops)} ops, the first is 0; list them with 'stowage ops'")
        made = [row for row in self._tensors() if choice.has(row.pop("scope"), row["size_bytes"])]
        self.made_by = {row["tensor"]: row.pop("op") for row in made}  # None: it was there before
        self.tensors = {row["tensor"]: row for row in made}
        if choice.is_some() and not self.tensors:
            raise StoreError(f"cannot find tensors of run {self._run_id} in store '{store.path}': none is {choice.asked()}; "
                             "list them with 'stowage tensors'")
        self.start = self._live_before()  # bytes by tensor
        self.events = self._events("planned_timeline" if planned else "timeline")
        self._highest = self._highest_by_step()

    def _tensors(self) -> list[Row]:
        return self._store.query("""
            SELECT t.tensor, t.name, t.kind, t.size_bytes, a.op, coalesce(o.scope, '') AS scope FROM tensors AS t
            LEFT JOIN allocations AS a INDEXED BY allocations_by_tensor ON a.run_id = t.run_id AND a.tensor = t.tensor
            LEFT JOIN ops AS o ON o.run_id = a.run_id AND o.op = a.op WHERE t.run_id = ? ORDER BY t.tensor""", self._run_id)

    def _live_before(self) -> Counter[int]:
        """Bytes of inputs and constants, and of what the step before left, by tensor."""
        live: Counter[int] = Counter()
        for tensor in self.tensors.values():
            if tensor["kind"] in HELD_KINDS:
                live[tensor["tensor"]] += tensor["size_bytes"]
        for left in self._store.query("SELECT a.tensor, a.requested_bytes AS size_bytes FROM carried AS c "
                                      "JOIN allocations AS a ON a.run_id = c.run_id AND a.allocation = c.allocation "
                                      "WHERE c.run_id = ?", self._run_id):
            if left["tensor"] in self.tensors:
                live[left["tensor"]] += left["size_bytes"]
        return live

    def _events(self, view: str) -> list[Row]:
        live_bytes = self.start.total()
        events = [{"event": -1, "step": -1, "op": None, "tensor": None, "what": "start", "change_bytes": live_bytes,
                   "live_bytes": live_bytes}]
        for event in self._store.query(f"SELECT event, NULL AS step, op, tensor, what, change_bytes FROM {view} "
                                       "WHERE run_id = ? AND op IS NOT NULL ORDER BY event", self._run_id):
            if event["tensor"] in self.tensors:
                live_bytes += event["change_bytes"]
                events.append({**event, "step": self._step_of[event["op"]], "live_bytes": live_bytes})
        return events

    def _highest_by_step(self) -> list[int]:
        """For each step the event after which most is live while its op runs, from what lives when it begins."""
        found: list[int | None] = [None] * len(self.ops)
        last_at = {}  # the last event of the steps up to one
        latest = 0
        for number, event in enumerate(self.events[1:], 1):
            step = event["step"]
            for candidate in ((number,) if found[step] is not None else (number - 1, number)):
                if found[step] is None or self._live(candidate) > self._live(found[step]):
                    found[step] = candidate
            # Threads of autograd allocate side by side, and ops that nobody watched stand after all others.
            if self.ops[step]["kind"] != "outside":
                latest = max(latest, step)
            last_at[latest] = number
        entering = 0
        for step, highest in enumerate(found):
            if highest is None:
                found[step] = entering
            entering = last_at.get(step, entering)
        return found

    def _live(self, event: int) -> int:
        return self.events[event]["live_bytes"]

    def highest(self, first_step: int, last_step: int | None = None) -> Row:
        """The first event of the highest live bytes while the ops of these steps run; `step` is one of theirs, or -1."""
        steps = range(first_step, len(self.ops) if last_step is None else min(last_step + 1, len(self.ops)))
        best = min(steps, key=lambda step: (-self._live(self._highest[step]), self._highest[step]), default=None)
        if best is None:
            return {**self.events[0], "number": 0}
        number = self._highest[best]
        is_start = number == 0 and first_step == 0
        return {**self.events[number], "number": number, **({} if is_start else {"step": best, "op": self.ops[best]["op"]})}

    def peak(self) -> Row:
        """Where the peak of the chosen steps and tensors is, and what lives there, biggest first.

        `op` and all about it is None if that is before the first op.
        """
        moment = self.highest(self.choice.first_step, self.choice.last_step)
        tensors = self.live_at(moment["number"])
        by_kind: dict[str, Row] = {}
        for tensor in tensors:
            kind = by_kind.setdefault(tensor["kind"], {"kind": tensor["kind"], "tensors": 0, "size_bytes": 0})
            kind["tensors"] += 1
            kind["size_bytes"] += tensor["size_bytes"]
        op = {"step": None, "op": None, "name": None, "kind": None, "scope": None, "source": None}
        return {"live_bytes": moment["live_bytes"], **(op if moment["op"] is None else self.ops[moment["step"]]),
                "by_kind": sorted(by_kind.values(), key=lambda kind: -kind["size_bytes"]), "tensors": tensors}

    def live_at(self, number: int) -> list[Row]:
        """The tensors that live after an event, biggest first."""
        live = Counter(self.start)
        for event in self.events[1:number + 1]:
            live[event["tensor"]] += event["change_bytes"]
        rows = [{**self.tensors[tensor], "size_bytes": size_bytes} for tensor, size_bytes in live.items() if size_bytes > 0]
        return sorted(rows, key=lambda row: (-row["size_bytes"], row["tensor"]))

    def at(self, op: int) -> Row:
        """As `highest`, while one op runs, with its row."""
        if op not in self._step_of:
            has = f"ops 0 to {len(self.ops) - 1}" if self.ops else "no ops"
            raise StoreError(f"cannot find op {op} in run {self._run_id} of store '{self._store.path}': it has {has}; list "
                             "them with 'stowage ops'")
        step = self._step_of[op]
        return {**self.highest(step, step), **self.ops[step]}
