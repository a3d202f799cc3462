# SPDX-License-Identifier: Apache-2.0
"""What would move the peak of a step, and where it would be then. Reckons from the step as it was recorded; only what
another form of an optimizer allocates is known beforehand. Needs no torch."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, groupby

from stowage.peaks import OPTIMIZER, UPDATE_IN_BACKWARD, Allocation, Change, Class, Op, Peak, Step

FOREACH_OFF, UPDATES_IN_BACKWARD = "foreach=False", "updates in the backward"

_ACCUMULATES = "torch::autograd::AccumulateGrad"
# What the single-tensor form of an optimizer holds at once beyond one of each of the tensors that its foreach form
# makes: tensors as large as the parameter, and as large as the parameter before. torch/optim/adam.py, torch 2.11: a root
# and its quotient, while `denom` still holds the last quotient.
_SINGLE_FORM = {"Adam.step": (1, 1), "AdamW.step": (1, 1), "SGD.step": (0, 0)}


@dataclass(frozen=True)
class Move:
    """A change of the program, and the peak it would have; None if it cannot be made or is made already."""

    name: str
    peak: Peak | None = None
    why_not: str = ""
    temporaries_bytes: int = 0  # the most that updates would hold at once
    is_estimate: bool = False  # it is not known what the other form of the optimizer holds; it may be more
    uses_all: str = ""  # kind of an op that wants all gradients before the first update


@dataclass(frozen=True)
class Explanation:
    peak: Peak
    classes: list[Class]  # largest first; their sizes add up to the peak
    gradient_bytes: int  # of all that the step makes
    moves: list[Move]


def explain(ops: list[Op], allocations: list[Allocation]) -> Explanation:
    """Explains a step; it must allocate something."""
    step = Step(ops, allocations)
    return Explanation(step.peak(step.changes()), step.classes(), sum(each.size_bytes for each in step.gradients),
                       [_foreach_off(step), _updates_in_backward(step)])


class _Update:
    """One run of an optimizer's ops, and what it makes and frees."""

    def __init__(self, step: Step, ops: list[int]) -> None:
        self.step, self.first_op, self.last_op = step, ops[0], ops[-1]
        self.kinds = {op: step.ops[op].kind for op in ops}
        self.optimizer = step.ops[ops[0]].scope.split("#")[-1]
        self.temporaries = [each for each in step.temporaries if each.op in self.kinds]
        by_op = groupby(self.temporaries, key=lambda each: each.op)
        # What a foreach op makes, a tensor for each parameter.
        self.sets = [list(found) for op, found in by_op if "_foreach_" in self.kinds[op]]

    def sizes(self) -> list[int]:
        """Of the parameters, in order, as foreach ops show them: those of one kind, which goes through all once."""
        by_kind: dict[str, list[int]] = {}
        for found in self.sets:
            by_kind.setdefault(self.kinds[found[0].op], []).extend(each.size_bytes for each in found)
        return max(by_kind.values(), key=sum)

    def sets_at_once(self) -> int:
        return _at_once([Allocation(found[0].op, 1, found[0].allocate_event, None, max(_end(each) for each in found))
                         for found in self.sets])

    def by_parameter(self) -> list[int]:
        """The most bytes of temporaries at once, of each parameter; some entries may be of no parameter, and 0."""
        if self.sets:
            at_once = self.sets_at_once()
            return [at_once * size for size in self.sizes()]
        ops, last_kind = sorted(self.kinds), self.kinds[self.last_op]
        ends = [op for op in ops if self.kinds[op] == last_kind]  # single-tensor forms end each parameter alike
        parts = groupby(self.temporaries, key=lambda each: bisect_left(ends, each.op))
        return [_at_once(list(part)) for _, part in parts]

    def in_single_form(self) -> int:
        """The most bytes of temporaries at once."""
        kinds = len({self.kinds[found[0].op] for found in self.sets})
        more, of_last = _SINGLE_FORM.get(self.optimizer, (self.sets_at_once() - kinds, 0))
        sizes = self.sizes()
        # Parameters too small to be recorded part others; the backward, which meets all in about the opposite order,
        # shows where they are.
        met = [0 if each is None else each.size_bytes for _, each in reversed(_accumulations(self.step))]
        if 0 in met and sorted(filter(None, met)) == sorted(sizes):
            sizes = met
        return max((kinds + more) * size + of_last * last for last, size in zip([0, *sizes], sizes))


def _foreach_off(step: Step) -> Move:
    """Temporaries of one parameter after another, instead of those of all."""
    if not step.updates:
        return Move(FOREACH_OFF, why_not="the step updates nothing")
    if step.updates_in_backward:
        return Move(FOREACH_OFF, why_not="the updates run within the backward, one parameter at a time")
    updates = [update for update in _updates(step) if update.sets]
    if not updates:
        has = "temporaries of one parameter at a time" if step.temporaries else "no temporaries"
        return Move(FOREACH_OFF, why_not=f"the optimizer makes {has} already")
    made = [each for update in updates for found in update.sets for each in found]
    changes, most = step.changes(without=made), 0
    for update in updates:
        at_once, op = update.in_single_form(), update.sets[-1][0].op
        begin, end = update.sets[0][0].allocate_event, step.time_after(update.last_op)
        changes += [Change(begin, at_once, op, place=OPTIMIZER), Change(end, -at_once, op)]
        most = max(most, at_once)
    is_estimate = any(update.optimizer not in _SINGLE_FORM for update in updates)
    return Move(FOREACH_OFF, step.peak(changes), temporaries_bytes=most, is_estimate=is_estimate)


def _updates_in_backward(step: Step) -> Move:
    """Each gradient dies with its own update, whose temporaries live beside it; in the optimizer's form of now."""
    why_not = _why_not_in_backward(step)
    if why_not:
        return Move(UPDATES_IN_BACKWARD, why_not=why_not)
    updates = _updates(step)
    temporaries = sorted((size for update in updates for size in update.by_parameter()), reverse=True)
    temporaries += [0] * len(step.gradients)
    op = step.temporaries[0].op if step.temporaries else updates[0].last_op
    order = [(op, each) for op, each in _accumulations(step) if each is not None]
    largest_first = sorted((each for _, each in order), key=lambda each: -each.size_bytes)
    temporaries_of = dict(zip(largest_first, temporaries))
    ends, spikes = {}, []
    for number, (after, each) in enumerate(order):
        # Several may lie between two events, one after another.
        begin, end = (step.time_after(after) + 0.4 * part / len(order) for part in (number, number + 0.5))
        size = temporaries_of[each]
        spikes += [Change(begin, size, op, place=UPDATE_IN_BACKWARD), Change(end, -size, op)]
        ends[each] = end
    changes = step.changes(without=step.temporaries, ends=ends)
    return Move(UPDATES_IN_BACKWARD, step.peak(changes + spikes), temporaries_bytes=temporaries[0],
                uses_all=_uses_all(step))


def _why_not_in_backward(step: Step) -> str:
    if not step.updates:
        return "the step updates nothing"
    if step.updates_in_backward:
        return "they run there already"
    if not step.gradients:
        return "the step makes no gradients: they are kept from step to step, and zero_grad() only clears them"
    if any(op.scope == _ACCUMULATES and op.kind in ("aten::add_", "aten::add") for op in step.watched):
        return "gradients of several backwards are added up before the update"
    return ""


def _accumulations(step: Step) -> list[tuple[int, Allocation | None]]:
    """The ops that accumulate gradients, in order, with the gradient; None is one that was too small to be recorded.

    Which op accumulates which is not recorded: of the gradients that wait, the smallest is taken to come first.
    """
    made = [(step.running(each.allocate_event), 0, each) for each in step.gradients]
    accumulated = [(op.op, 1, None) for op in step.watched if op.scope == _ACCUMULATES]
    order: list[tuple[int, Allocation | None]] = []
    waiting: list[Allocation] = []
    in_order = sorted(made + accumulated, key=lambda item: item[:2])
    for is_accumulated, found in groupby(in_order, key=lambda item: item[1]):
        members = list(found)
        if not is_accumulated:
            waiting = sorted([*waiting, *(each for _, _, each in members)], key=lambda each: each.size_bytes)
            continue
        unrecorded = [None] * (len(members) - len(waiting))
        order += [(op, each) for (op, _, _), each in zip(members, [*unrecorded, *waiting])]
        waiting = waiting[len(members):]
    return order + [(step.backward[-1], each) for each in waiting]


def _uses_all(step: Step) -> str:
    """What looks at all gradients between the backward and the update: clipping, or a scaler."""
    for update in _updates(step):
        begin = max((op for op in step.backward if op < update.first_op), default=-1)
        for op in step.watched:
            if begin < op.op < update.first_op and ("_norm" in op.kind or "_amp_" in op.kind):
                return op.kind
    return ""


def _updates(step: Step) -> list[_Update]:
    return [_Update(step, ops) for ops in step.updates]


def _end(each: Allocation) -> int:
    return each.allocate_event if each.free_event is None else each.free_event


def _at_once(allocations: list[Allocation]) -> int:
    """The most bytes that live at once."""
    changes = [change for each in allocations
               for change in ((each.allocate_event, each.size_bytes), (_end(each), -each.size_bytes))]
    return max(accumulate(change for _, change in sorted(changes)), default=0)
