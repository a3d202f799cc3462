# SPDX-License-Identifier: Apache-2.0
"""A device that is full: no plan costs the user an error that the unplanned program does not have."""

from contextlib import contextmanager

import pytest
import stowage
import torch
from cuda.stepping import HOOKED, Step, hooked, notes
from planning import newest_region

MIB = 1 << 20
CONTEXT_MIB = 512
TOTAL_MIB = 81559


@contextmanager
def free_memory(dry, mib: int):
    """Leaves the device this much beside what is allocated already."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    dry.set_total_bytes(dry.used_bytes() + (CONTEXT_MIB + mib) * MIB)
    try:
        yield
    finally:
        dry.set_total_bytes(TOTAL_MIB * MIB)


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def pin_pieces(count: int, mib: int) -> tuple[list, list]:
    """Fills as many segments with a piece of `mib` and a small pinned one each. Frees of the pieces leave room in
    blocks that the allocator can neither join nor give back."""
    segments = [block(mib + 2) for _ in range(count)]
    pieces, pins = [], []
    while segments:
        segments.pop()
        pins.append(block(2))
        pieces.append(block(mib))
    return pieces, pins


def plans_given_up(told: int) -> list[str]:
    return [line for line in notes(told) if "it goes on unplanned" in line]


def test_without_room_for_the_arena_training_goes_on_unplanned(dry):
    """The arena finds room for one of its blocks; the step itself finds it in pieces."""
    stowage.enable()
    told = len(notes())
    step = Step(rows=4 * 1024)  # 64 MiB each
    with free_memory(dry, 3 * 66):
        pieces, pins = pin_pieces(3, 64)
        pieces.clear()
        step.run(12)
        assert step_phase(step)["state"] == "unplanned"
        assert stowage.status()["arena_bytes"] == 0
    (line,) = plans_given_up(told)
    assert "CUDA out of memory. Tried to allocate 64.00 MiB" in line
    del pins


def step_phase(step: Step) -> dict:
    step.region = newest_region()
    return step.phase()


def test_a_plan_whose_arena_cannot_be_had_again_is_dropped_once(dry):
    stowage.enable()
    step = Step(rows=2 * 1024).until_planned()  # 16 MiB each
    told = len(notes())
    with free_memory(dry, 18):
        first, first_pins = pin_pieces(2, 16)  # takes the arena, which is idle
        assert stowage.status()["arena_bytes"] == 0
        first.clear()
        step.run(5)
        del first_pins
    assert len(plans_given_up(told)) == 1
    assert step.phase()["state"] == "unplanned"


def test_the_users_own_error_is_as_ever(dry):
    stowage.enable()
    step = Step().until_planned()
    with pytest.raises(torch.cuda.OutOfMemoryError) as ran_out:
        block(90 * 1024)
    assert "Tried to allocate 90.00 GiB. GPU 0 has a total capacity of 79.65 GiB" in str(ran_out.value)
    assert step.is_planned()
    assert step.last()["hits"]["allocations"] == 5


def test_an_error_within_a_planned_run_is_as_ever_and_leaves_no_trace(dry, witness):
    stowage.enable()
    step = Step(HOOKED).until_planned()
    hits = step.last()["hits"]["allocations"]
    arena = stowage.status()["arena_bytes"]

    def run_out(_):
        block(90 * 1024)

    with hooked("first", run_out), pytest.raises(Exception, match=r"Tried to allocate 90.00 GiB. GPU 0 has a total"):
        step()
    assert stowage.status()["arena_bytes"] == arena
    with dry.held_events(), witness():
        for _ in range(3):
            assert step.is_planned()
            assert step.last()["hits"]["allocations"] == hits
            assert step.last()["late_frees"] == 0


def test_an_idle_arena_is_given_back_before_the_user_runs_out(dry):
    stowage.enable()
    step = Step(rows=2 * 1024).until_planned()
    arena = stowage.status()["arena_bytes"]
    assert arena == 2 * 16 * MIB
    with free_memory(dry, 24):
        needs_it = block(40)
        assert stowage.status()["arena_bytes"] == 0
        del needs_it
        torch.cuda.empty_cache()
        step()  # has room again
        assert stowage.status()["arena_bytes"] == arena
        assert step.is_planned()


@pytest.mark.parametrize("makes", ["unplanned", "profiled"])
def test_an_idle_arena_is_given_back_before_another_step_runs_out(dry, makes):
    stowage.enable()
    other = Step(rows=3 * 1024)  # 36 MiB each
    other()  # the run that TorchScript profiles
    first = Step(rows=4 * 1024).until_planned()  # 64 MiB each
    arena = stowage.status()["arena_bytes"]
    if makes == "unplanned":
        stowage.set_option("plan", "0")
    with free_memory(dry, 2):
        other.run(6)
        assert stowage.status()["arena_bytes"] < arena
    assert first.phase()["state"] == "planned"


def test_an_idle_arena_that_another_stream_has_just_left_is_given_back(dry):
    stowage.enable()
    step = Step(HOOKED, rows=2 * 1024).until_planned()
    stream = torch.cuda.Stream()

    def use(tensor):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor.sum()
        tensor.record_stream(stream)

    with dry.held_events(stream.cuda_stream), hooked("first", use):
        assert step.is_planned()
        stowage.disable()
        torch.cuda.synchronize()
        with free_memory(dry, 10):
            block(30)


def test_profiled_runs_fall_back_where_the_driver_has_no_more(dry):
    """Their allocations come from the driver one by one, in pages of 2 MiB; the cache packs what it can."""
    stowage.enable()
    step = Step(rows=64)  # 16 KiB each
    with free_memory(dry, 4):
        step.until_planned()
        assert step.is_planned()
