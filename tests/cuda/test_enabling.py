# SPDX-License-Identifier: Apache-2.0
"""Stowage may be enabled and disabled at any time, whatever tensors there are."""

import pytest
import stowage
import torch
from cuda.stepping import HOOKED, Step, hooked
from planning import newest_region

MIB = 1 << 20


def block(mib: int = 50) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def use_on(stream, tensor: torch.Tensor) -> None:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensor.add_(1)
    tensor.record_stream(stream)


def test_cuda_is_in_use_before_stowage_is_enabled():
    before = torch.zeros(1, device="cuda")
    stowage.enable()
    step = Step().until_planned()
    assert step.is_planned()
    del before


@pytest.mark.parametrize("program", ["late", "library", "early"])
def test_enabling_around_the_first_use_of_cuda(run_python, program):
    """In a process of its own: CUDA starts before, by an import, or after stowage is enabled."""
    assert run_python("first_use.py", program) == {"planned": True, "notes": []}


def test_enabling_again_plans_again():
    for _ in range(3):
        stowage.enable()
        step = Step().until_planned()
        stowage.disable()
        assert stowage.status()["arena_bytes"] == 0
        assert not step.is_planned()  # the plan is there, but nobody follows it
        stowage.enable()
        assert step.is_planned()
        stowage.disable()


def test_the_plan_goes_on_after_a_pause():
    stowage.enable()
    step = Step().until_planned()
    stowage.disable()
    step.run(2)
    assert step.runs() == 3
    stowage.enable()
    for _ in range(3):
        assert step.is_planned()


def test_tensors_outlive_the_time_in_which_they_were_made():
    before = block()
    stowage.enable()
    Step().until_planned()
    during = block()
    allocated = torch.cuda.memory_allocated()
    del before
    assert torch.cuda.memory_allocated() == allocated - 50 * MIB
    stowage.disable()
    allocated = torch.cuda.memory_allocated()
    del during
    assert torch.cuda.memory_allocated() == allocated - 50 * MIB


def test_planned_tensors_outlive_stowage():
    stowage.enable()
    step = Step(HOOKED).until_planned()
    kept = []
    with hooked("first", kept.append):
        step()
    (tensor,) = kept
    arena = stowage.status()["arena_bytes"]
    stowage.disable()
    allocated = torch.cuda.memory_allocated()
    tensor.add_(1)
    tensor.record_stream(torch.cuda.Stream())
    torch.cuda.synchronize()
    kept.clear()
    del tensor
    stowage.enable()
    Step().until_planned()  # looks after what was held back
    stowage.disable()
    assert torch.cuda.memory_allocated() <= allocated - arena


@pytest.mark.parametrize("enable_again", [False, True])
@pytest.mark.parametrize("made", ["before", "during"])
def test_streams_recorded_after_stowage_are_heeded(dry, made, enable_again):
    """A tensor that stowage handed on is used on another stream after stowage is disabled."""
    stream = torch.cuda.Stream()
    if made == "during":
        stowage.enable()
    tensor = block()
    if made == "before":
        stowage.enable()
    stowage.disable()
    if enable_again:
        stowage.enable()
    address = tensor.data_ptr()
    with dry.held_events():
        use_on(stream, tensor)
        del tensor
        while_used = block()
        assert while_used.data_ptr() != address
        stream.synchronize()
        afterwards = block()
        assert afterwards.data_ptr() == address


def test_an_allocator_above_stowages_is_left_there(dry):
    stowage.enable()
    Step().until_planned()
    stowage.disable()
    with dry.witness():
        stowage.enable()
        live = dry.live_ranges()
        tensor = block()
        assert dry.live_ranges() == live + 1
        step = Step()
        step.run(6)
        assert newest_region()["phases"][0]["state"] == "unplanned"
        why = "the allocator 'native' has taken the place of stowage's; enable stowage after the library that did so"
        assert newest_region()["phases"][0]["why"] == why
        del tensor
    assert f"cannot plan CUDA memory: {why}" in stowage.status()["notes"]
    Step().until_planned()


def test_blocks_that_were_made_while_caching_was_off_are_freed_as_such(run_python):
    """In a process of its own, as only the first time that stowage is enabled counts."""
    assert run_python("first_use.py", "caching_off") == {"planned": True, "notes": []}
