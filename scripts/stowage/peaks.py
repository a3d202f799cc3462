# SPDX-License-Identifier: Apache-2.0
"""Where the peak of a step is and what lives there, from what the step was recorded to allocate. Needs no torch."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

# Places in a step.
FORWARD, END_OF_FORWARD, BACKWARD, AFTER_BACKWARD = "forward", "end of forward", "backward", "after backward"
OPTIMIZER, UPDATE_IN_BACKWARD = "optimizer", "update in backward"
# Classes of what lives there.
GRADIENTS, TEMPORARIES, STATE, LEFT = "gradients", "optimizer temporaries", "optimizer state", "left by the step before"
SAVED, KEPT, FORWARD_TEMPORARIES = "saved by the forward", "kept by the program", "forward temporaries"
BACKWARD_TEMPORARIES = "backward temporaries"

_OPTIMIZER = "Optimizer.step#"  # torch/optim/optimizer.py, torch 2.11: what its step records
_BACKWARD = re.compile(r"torch::autograd::|Backward\d*$")


@dataclass(frozen=True)
class Op:
    op: int
    name: str
    kind: str
    scope: str


@dataclass(frozen=True)
class Allocation:
    """`next_free_*`: where the next step frees it, if that does. An op and its event are there both or neither."""

    op: int
    size_bytes: int
    allocate_event: int
    free_op: int | None = None
    free_event: int | None = None
    next_free_op: int | None = None
    next_free_event: int | None = None


@dataclass(frozen=True)
class Peak:
    """The most bytes that live at once, of those that the step allocates."""

    live_bytes: int
    place: str
    op: Op
    optimizer: str = ""  # such as "Adam.step", where the place is in one


@dataclass(frozen=True)
class Class:
    name: str
    tensors: int
    size_bytes: int
    largest_bytes: int
    made_by: list[str]  # kinds of ops


@dataclass
class Change:
    """`time` is an event, or lies between two; -1 is the start. `place` is the change's own, or found by its op."""

    time: float
    change_bytes: int
    op: int
    of: Allocation | None = None
    is_left: bool = False  # by the step before
    place: str = ""


class Step:
    """A step that allocates something, and its phases: an op is of the optimizer, of the backward, or of the rest."""

    def __init__(self, ops: list[Op], allocations: list[Allocation]) -> None:
        self.ops, self.allocations = {op.op: op for op in ops}, allocations
        self.watched = [op for op in ops if op.kind != "outside"]
        self._number_events()
        self._phase = {op.op: _phase_of(op) for op in self.watched}
        runs = [(phase, [op for op, _ in found])
                for phase, found in groupby(self._phase.items(), key=lambda item: item[1])]
        self.updates = [found for phase, found in runs if phase == OPTIMIZER]
        self.backward = [op for op, phase in self._phase.items() if phase == BACKWARD]
        self._updates_begin = [found[0] for found in self.updates]
        self.updates_in_backward = (OPTIMIZER, BACKWARD) in pairwise(phase for phase, _ in runs)
        self.gradients = {each for each in allocations if self._is_gradient(each)}
        self.temporaries = [each for each in allocations if self.class_of(each) == TEMPORARIES]

    def _number_events(self) -> None:
        """Events in order, and the op that had begun last at each. Ops that nobody watched stand after all others."""
        watched = {op.op for op in self.watched}
        pairs = [pair for each in self.allocations
                 for pair in ((each.allocate_event, each.op), (each.free_event, each.free_op),
                              (each.next_free_event, each.next_free_op)) if pair[0] is not None]
        self.events: list[int] = []
        self._running: list[int] = []
        last = -1
        for event, op in sorted(pairs):
            last = max(last, op) if op in watched else last
            self.events.append(event)
            self._running.append(last)

    def running(self, time: float) -> int:
        """The op that had begun last; -1 if none had."""
        at = bisect_left(self.events, time)
        return self._running[min(at, len(self._running) - 1)]

    def time_after(self, op: int) -> float:
        """Just before the first event of the ops after this one."""
        at = bisect_left(self._running, op + 1)
        return (self.events[at] if at < len(self.events) else self.events[-1] + 1) - 0.5

    def phase(self, op: int, event: float) -> str:
        """That of an op that nobody watched is the phase it falls into."""
        return self._phase.get(op) or self._phase.get(self.running(event), FORWARD)

    def _is_gradient(self, each: Allocation) -> bool:
        """Made by the backward, which does not free it, and there when an update begins, if one follows."""
        if self.phase(each.op, each.allocate_event) != BACKWARD:
            return False
        if each.free_op is None or each.free_event is None:
            return True
        after = bisect_right(self._updates_begin, each.op)
        lasts = each.free_op >= (self._updates_begin[after] if after < len(self.updates) else self.backward[-1] + 1)
        return lasts and self.phase(each.free_op, each.free_event) != BACKWARD

    def class_of(self, each: Allocation) -> str:
        phase = self.phase(each.op, each.allocate_event)
        if phase == OPTIMIZER:
            return TEMPORARIES if each.free_event is not None else STATE
        if phase == BACKWARD:
            return GRADIENTS if each in self.gradients else BACKWARD_TEMPORARIES
        if each.free_event is None or each.free_op is None:
            return KEPT
        return {BACKWARD: SAVED, OPTIMIZER: KEPT}.get(self.phase(each.free_op, each.free_event), FORWARD_TEMPORARIES)

    def changes(self, without: Iterable[Allocation] = (),
                ends: Mapping[Allocation, float] | None = None) -> list[Change]:
        """What the step allocates and frees; the tensors in `ends` end there, and are not left to the next step."""
        left_out, ends = set(without), ends or {}
        first_op = self.watched[0].op if self.watched else 0
        found = []
        for each in self.allocations:
            if each in left_out:
                continue
            found.append(Change(each.allocate_event, each.size_bytes, each.op, each))
            if each in ends:
                found.append(Change(ends[each], -each.size_bytes, each.op, each))
            elif each.free_event is not None:
                found.append(Change(each.free_event, -each.size_bytes, each.free_op, each))
            elif each.next_free_event is not None:
                found.append(Change(-1, each.size_bytes, first_op, each, is_left=True))
                found.append(Change(each.next_free_event, -each.size_bytes, each.next_free_op, each, is_left=True))
        return found

    def peak(self, changes: list[Change]) -> Peak:
        return self._peak(changes)[0]

    def classes(self) -> list[Class]:
        """What lives at the peak, largest first."""
        live: dict[tuple[Allocation, bool], None] = {}
        for change in self._peak(self.changes())[1]:
            key = (change.of, change.is_left)
            live.pop(key) if change.change_bytes < 0 else live.setdefault(key)
        by_class = defaultdict(list)
        for each, is_left in live:
            by_class[LEFT if is_left else self.class_of(each)].append(each)
        found = [Class(name, len(members), sum(each.size_bytes for each in members),
                       max(each.size_bytes for each in members),
                       sorted({self.ops[each.op].kind for each in members})) for name, members in by_class.items()]
        return sorted(found, key=lambda each: (-each.size_bytes, each.name))

    def _peak(self, changes: list[Change]) -> tuple[Peak, list[Change]]:
        """The peak, and the changes up to it."""
        changes = sorted(changes, key=lambda change: (change.time, change.change_bytes))  # frees come first
        live, most, at = 0, -1, 0
        for number, change in enumerate(changes):
            live += change.change_bytes
            if live > most:
                most, at = live, number
        change = changes[at]
        place = change.place or self._place(change)
        op = self.ops[change.op]
        optimizer = op.scope.removeprefix(_OPTIMIZER) if place in (OPTIMIZER, UPDATE_IN_BACKWARD) else ""
        return Peak(most, place, op, optimizer), changes[:at + 1]

    def _place(self, change: Change) -> str:
        phase = self.phase(change.op, change.time)
        if phase == OPTIMIZER:
            return UPDATE_IN_BACKWARD if self.updates_in_backward else OPTIMIZER
        if phase == BACKWARD:
            return BACKWARD
        after = self.backward[bisect_left(self.backward, self.running(change.time)):]
        if not after:
            return AFTER_BACKWARD if self.backward else FORWARD
        saves_more = any(each.allocate_event > change.time and self.class_of(each) == SAVED and each.op < after[0]
                         for each in self.allocations)
        return FORWARD if saves_more else END_OF_FORWARD


def _phase_of(op: Op) -> str:
    if op.scope.startswith(_OPTIMIZER):
        return OPTIMIZER
    return BACKWARD if _BACKWARD.search(op.scope) else FORWARD
