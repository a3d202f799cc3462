# SPDX-License-Identifier: Apache-2.0
"""The reckoning of peaks, on steps made by hand."""

from dataclasses import replace

import pytest
from stowage.explaining.moves import FOREACH_OFF, UPDATES_IN_BACKWARD, Explanation, Move, explain
from stowage.peaks import (
    AFTER_BACKWARD,
    BACKWARD,
    BACKWARD_TEMPORARIES,
    END_OF_FORWARD,
    FORWARD,
    GRADIENTS,
    KEPT,
    LEFT,
    OPTIMIZER,
    SAVED,
    STATE,
    TEMPORARIES,
    UPDATE_IN_BACKWARD,
    Allocation,
    Op,
    Step,
)

ADAM, ACCUMULATES = "Optimizer.step#Adam.step", "torch::autograd::AccumulateGrad"


class Recorder:
    """Records a step: `run` an op that makes tensors, and `free` them while it runs. Sizes are in bytes."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.allocations: list[Allocation] = []
        self.event = 0

    def run(self, kind: str, scope: str = "", *sizes: int) -> list[int]:
        """The numbers of the allocations."""
        self.ops.append(Op(len(self.ops), f"{kind}.{len(self.ops)}", f"aten::{kind}", scope))
        for size in sizes:
            self.allocations.append(Allocation(len(self.ops) - 1, size, self._next_event()))
        return list(range(len(self.allocations) - len(sizes), len(self.allocations)))

    def free(self, numbers: list[int]) -> None:
        for number in numbers:
            self.allocations[number] = replace(self.allocations[number], free_op=len(self.ops) - 1,
                                               free_event=self._next_event())

    def explain(self) -> Explanation:
        return explain(self.ops, self.allocations)

    def _next_event(self) -> int:
        self.event += 1
        return self.event - 1


def loop(sizes: list[int], saved: int = 2, forward_only: int = 0, form: str = "foreach", scope: str = ADAM,
         between: str = "") -> Recorder:
    """A forward that saves a tensor, a backward that makes a gradient at a time, and an update of all."""
    step = Recorder()
    kept = step.run("linear", "", saved)
    if forward_only:
        temporary = step.run("exp", "", forward_only)
        step.run("sum")
        step.free(temporary)
    gradients = []
    for size in sizes:
        gradients += step.run("mm", "MmBackward0", size)
        step.run("detach", ACCUMULATES)
    step.run("view", "MmBackward0")
    step.free(kept)
    if between:
        step.run(between)
    if form == "foreach":
        roots = step.run("_foreach_sqrt", scope, *sizes)
        step.run("_foreach_addcdiv_", scope)
        step.free(roots)
    else:
        last: list[int] = []
        for size in sizes:
            root = step.run("sqrt", scope, size)
            quotient = step.run("div", scope, size)
            step.free(root + last)
            step.run("addcdiv_", scope)
            last = quotient
        step.free(last)
    step.run("zero")
    step.free(gradients)
    return step


def move(found: Explanation, name: str) -> Move:
    return next(each for each in found.moves if each.name == name)


def outcome(found: Explanation, name: str) -> tuple[int, str]:
    peak = move(found, name).peak
    assert peak is not None
    return peak.live_bytes, peak.place


def classes(found: Explanation) -> dict[str, tuple[int, int]]:
    return {each.name: (each.tensors, each.size_bytes) for each in found.classes}


def test_the_peak_is_in_the_optimizers_step() -> None:
    found = loop([4, 4, 4, 4]).explain()
    assert (found.peak.live_bytes, found.peak.place, found.peak.optimizer) == (32, OPTIMIZER, "Adam.step")
    assert found.peak.op.kind == "aten::_foreach_sqrt"
    assert classes(found) == {GRADIENTS: (4, 16), TEMPORARIES: (4, 16)}
    assert found.gradient_bytes == 16


def test_one_parameter_at_a_time() -> None:
    found = loop([4, 4, 4, 4]).explain()
    # The root and its quotient, beside the last quotient: 12, and the gradients.
    assert outcome(found, FOREACH_OFF) == (28, OPTIMIZER)
    assert move(found, FOREACH_OFF).temporaries_bytes == 12
    assert loop([4, 4, 4, 4], form="single").explain().peak.live_bytes == 28
    assert not move(found, FOREACH_OFF).is_estimate


def test_the_last_quotient_is_that_of_the_parameter_before() -> None:
    for sizes, temporaries in (([1, 6, 5], 2 * 5 + 6), ([1, 5, 6], 2 * 6 + 5), ([6, 1, 1], 2 * 6)):
        assert move(loop(sizes).explain(), FOREACH_OFF).temporaries_bytes == temporaries
        assert loop(sizes, form="single").explain().peak.live_bytes == sum(sizes) + temporaries


def test_parameters_too_small_to_be_recorded_part_others() -> None:
    step = Recorder()
    gradients = []
    for _ in range(3):  # the smaller of two waiting gradients is not there, and is accumulated first
        gradients += step.run("mm", "AddmmBackward0", 4)
        step.run("detach", ACCUMULATES)
        step.run("detach", ACCUMULATES)
    roots = step.run("_foreach_sqrt", ADAM, 4, 4, 4)
    step.free(roots + gradients)
    assert move(step.explain(), FOREACH_OFF).temporaries_bytes == 8


def test_a_form_that_is_not_known_is_an_estimate() -> None:
    found = loop([4, 4, 4, 4], scope="Optimizer.step#Other.step").explain()
    assert outcome(found, FOREACH_OFF) == (16 + 4, OPTIMIZER)
    assert move(found, FOREACH_OFF).is_estimate


@pytest.mark.parametrize(("form", "temporaries"), [("foreach", 4), ("single", 8)])
def test_each_gradient_dies_with_its_own_update(form: str, temporaries: int) -> None:
    found = loop([4, 4, 4, 4], form=form).explain()
    assert outcome(found, UPDATES_IN_BACKWARD) == (2 + 4 + temporaries, UPDATE_IN_BACKWARD)
    assert move(found, UPDATES_IN_BACKWARD).temporaries_bytes == temporaries


def test_of_gradients_that_wait_the_smallest_is_updated_first() -> None:
    step = Recorder()
    gradients = step.run("mm", "AddmmBackward0", 8, 3)
    step.run("detach", ACCUMULATES)
    step.run("detach", ACCUMULATES)
    more = step.run("mm", "AddmmBackward0", 1)
    step.run("detach", ACCUMULATES)
    roots = step.run("_foreach_sqrt", ADAM, 8, 3, 1)
    step.free(roots + gradients + more)
    # Both wait, and 3 more: 14. Then 8 alone, and 8 more. If 8 came first, 3 would be there too.
    assert outcome(step.explain(), UPDATES_IN_BACKWARD) == (16, UPDATE_IN_BACKWARD)


def test_a_gradient_that_waits_for_its_other_half_lives_until_then() -> None:
    step = Recorder()
    gradients = step.run("mm", "AddmmBackward0", 50)  # of a weight that is used twice
    for _ in range(2):
        gradients += step.run("mm", "AddmmBackward0", 4)
        step.run("detach", ACCUMULATES)
    step.run("detach", ACCUMULATES)
    roots = step.run("_foreach_sqrt", ADAM, 50, 4, 4)
    step.free(roots + gradients)
    assert outcome(step.explain(), UPDATES_IN_BACKWARD) == (100, UPDATE_IN_BACKWARD)


def test_where_the_forward_saves_most_neither_moves_the_peak() -> None:
    found = loop([4, 4], saved=100, forward_only=50).explain()
    assert (found.peak.live_bytes, found.peak.place) == (150, END_OF_FORWARD)
    assert classes(found)[SAVED] == (1, 100)
    assert outcome(found, FOREACH_OFF) == outcome(found, UPDATES_IN_BACKWARD) == (150, END_OF_FORWARD)


def test_updates_in_the_backward_may_need_more() -> None:
    found = loop([4, 4], saved=100).explain()
    assert (found.peak.live_bytes, found.peak.place) == (108, BACKWARD)
    assert outcome(found, FOREACH_OFF) == (108, BACKWARD)
    found = loop([4, 40, 4], saved=100, form="single").explain()
    assert (found.peak.live_bytes, found.peak.place) == (148, BACKWARD)
    assert outcome(found, UPDATES_IN_BACKWARD) == (100 + 40 + 80, UPDATE_IN_BACKWARD)


def test_the_peak_moves_to_the_backward() -> None:
    found = loop([4, 4, 4, 4], saved=11).explain()
    assert (found.peak.live_bytes, found.peak.place) == (32, OPTIMIZER)
    assert outcome(loop([4, 4, 4, 4], saved=14).explain(), FOREACH_OFF) == (30, BACKWARD)
    assert outcome(found, UPDATES_IN_BACKWARD) == (19, UPDATE_IN_BACKWARD)


def test_what_the_forward_saves_later_puts_the_peak_before_its_end() -> None:
    step = Recorder()
    big = step.run("exp", "", 50)
    step.run("sum")
    step.free(big)
    saved = step.run("linear", "", 3)
    step.run("mm", "MmBackward0", 2)
    step.free(saved)
    found = step.explain()
    assert (found.peak.live_bytes, found.peak.place) == (50, FORWARD)
    assert [each.why_not for each in found.moves] == ["the step updates nothing"] * 2


def test_after_the_backward() -> None:
    step = loop([4, 4])
    step.run("clone", "", 70)
    found = step.explain()
    assert (found.peak.live_bytes, found.peak.place) == (70, AFTER_BACKWARD)
    assert classes(found) == {KEPT: (1, 70)}


def test_gradients_that_the_step_before_left() -> None:
    step = Recorder()
    step.run("linear", "", 9)
    step.run("zero_")
    step.event += 1  # the old gradient's end
    step.run("mm", "MmBackward0", 4)
    step.allocations[1] = replace(step.allocations[1], next_free_op=1, next_free_event=1)
    found = step.explain()
    assert (found.peak.live_bytes, found.peak.place) == (13, END_OF_FORWARD)
    assert classes(found) == {KEPT: (1, 9), LEFT: (1, 4)}


def test_updates_that_run_in_the_backward_already() -> None:
    step = Recorder()
    saved = step.run("linear", "", 5)
    for _ in range(2):
        weight = step.run("mm", "MmBackward0", 4)
        of_input = step.run("mm", "MmBackward0", 1)
        step.run("detach", ACCUMULATES)
        root = step.run("sqrt", ADAM, 4)
        step.free(root + weight)
        step.run("threshold_backward", "ReluBackward0")
        step.free(of_input)
    step.free(saved)
    found = step.explain()
    assert (found.peak.live_bytes, found.peak.place, found.peak.optimizer) == (14, UPDATE_IN_BACKWARD, "Adam.step")
    assert classes(found) == {SAVED: (1, 5), GRADIENTS: (1, 4), TEMPORARIES: (1, 4), BACKWARD_TEMPORARIES: (1, 1)}
    assert [each.why_not for each in found.moves] == [
        "the updates run within the backward, one parameter at a time", "they run there already"]


def test_why_a_move_cannot_be_made() -> None:
    found = loop([4, 4], form="single").explain()
    assert move(found, FOREACH_OFF).why_not == "the optimizer makes temporaries of one parameter at a time already"

    step = Recorder()
    step.run("mul", "MulBackward0")
    step.free(step.run("_foreach_sqrt", ADAM, 4))
    assert move(step.explain(), UPDATES_IN_BACKWARD).why_not == (
        "the step makes no gradients: they are kept from step to step, and zero_grad() only clears them")

    step = loop([4])
    step.ops[2] = replace(step.ops[2], kind="aten::add_")
    assert move(step.explain(), UPDATES_IN_BACKWARD).why_not == (
        "gradients of several backwards are added up before the update")


def test_what_wants_all_gradients_stands_against_updates_in_the_backward() -> None:
    assert move(loop([4, 4], between="_foreach_norm").explain(), UPDATES_IN_BACKWARD).uses_all == "aten::_foreach_norm"
    assert move(loop([4, 4], between="mul").explain(), UPDATES_IN_BACKWARD).uses_all == ""


def test_state_that_the_first_step_makes() -> None:
    step = loop([4])
    step.run("zeros_like", ADAM, 30)
    assert classes(step.explain()) == {STATE: (1, 30)}


def test_what_no_watched_op_made_is_of_the_phase_it_falls_into() -> None:
    step = loop([4, 4])
    outside = Op(len(step.ops), "outside.0", "outside", "")
    step.allocations[2] = replace(step.allocations[2], op=outside.op)
    assert Step([*step.ops, outside], step.allocations).gradients == set(step.allocations[1:3])


def test_a_step_of_which_nothing_was_watched() -> None:
    found = explain([Op(0, "outside.0", "outside", "")], [Allocation(0, 7, 0)])
    assert (found.peak.live_bytes, found.peak.place) == (7, FORWARD)
