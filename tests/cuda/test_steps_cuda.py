# SPDX-License-Identifier: Apache-2.0
"""Steps of training loops on CUDA: autograd's own thread, other streams, pools. The witness finds memory that two users
have at once."""

from collections.abc import Callable
from typing import Any

import pytest
import stowage
import torch
from torch import nn

STEPS = 8


def status() -> dict:
    return next(each for each in stowage.status()["steps"] if each["device"] == "cuda:0")


def planned() -> dict:
    """The phase that was followed most."""
    return max((phase for phase in status()["phases"] if phase["state"] == "planned"), key=lambda phase: phase["runs"])


def misses(phase: dict) -> dict:
    return {reason: count["allocations"] for reason, count in phase["last"]["misses"].items() if count["allocations"]}


class Loop:
    def __init__(self) -> None:
        self.model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU())]).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x = torch.zeros(512, 256, device="cuda")

    def turn(self, within: Callable[[torch.Tensor], Any] = lambda out: None) -> None:
        with stowage.step():
            self.optimizer.zero_grad()
            out = self.model(self.x)
            within(out)
            out.sum().backward()
            self.optimizer.step()

    def until_planned(self) -> "Loop":
        for _ in range(STEPS):
            self.turn()
        assert planned()["runs"] >= 3
        return self


def test_a_loop_is_served_from_its_arena_autograd_s_thread_included(dry, witness):
    stowage.enable()
    loop = Loop().until_planned()
    with dry.held_events(), witness():
        for _ in range(3):
            loop.turn()
    phase = planned()
    assert misses(phase) == {}
    assert phase["last"]["hits"]["allocations"] == phase["allocations"]
    assert phase["arena_bytes"] == phase["arena_bound_bytes"]


def test_reserved_memory_is_no_more_than_eager_has_live(dry):
    def reserved_and_live() -> tuple[int, int]:
        loop = Loop()
        loop.turn()
        for _ in range(STEPS):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            loop.turn()
        return torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()

    _, live = reserved_and_live()
    torch.cuda.empty_cache()
    stowage.enable()
    reserved, _ = reserved_and_live()
    pages = 2 * 20 << 20  # the native allocator's, of small tensors and of weights
    assert reserved <= live * 1.01 + pages


def test_a_tensor_that_another_stream_uses_keeps_its_slot(dry, witness):
    stowage.enable()
    loop = Loop().until_planned()
    stream = torch.cuda.Stream()

    def leak(out: torch.Tensor) -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out.detach().mul(2)
        out.record_stream(stream)

    with dry.held_events(stream.cuda_stream), witness():
        for _ in range(3):
            loop.turn(leak)
    assert status()["planned_bytes"] > 0


def test_a_step_on_another_stream_follows_the_one_before(dry, witness):
    stowage.enable()
    loop = Loop().until_planned()
    stream = torch.cuda.Stream()
    with witness():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loop.turn()
            loop.turn()
        torch.cuda.current_stream().wait_stream(stream)
        loop.turn()


def test_a_tensor_that_is_kept_is_not_overwritten(dry, witness):
    stowage.enable()
    loop = Loop().until_planned()
    kept: list[torch.Tensor] = []
    with witness():
        for _ in range(4):
            loop.turn(kept.append)


def test_a_pool_gets_what_is_allocated_within_it(dry):
    stowage.enable()
    loop = Loop().until_planned()
    pool = torch.cuda.MemPool()
    made = []

    def within(out: torch.Tensor) -> None:
        with torch.cuda.use_mem_pool(pool):
            made.append(torch.zeros(1 << 20, device="cuda"))

    hits = planned()["total"]["hits"]["allocations"]
    loop.turn(within)
    segments = [segment for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) == tuple(pool.id)]
    assert any(segment["address"] <= made[0].data_ptr() < segment["address"] + segment["total_size"] for segment in segments)
    loop.turn()
    assert planned()["total"]["hits"]["allocations"] > hits
    made.clear()
    del pool


def test_a_graph_that_is_captured_within_a_step_has_memory_of_its_own(dry):
    stowage.enable()
    loop = Loop().until_planned()
    arena = [(segment["address"], segment["address"] + segment["total_size"]) for segment in torch.cuda.memory_snapshot()]
    graph = torch.cuda.CUDAGraph()
    addresses = []

    def within(out: torch.Tensor) -> None:
        with torch.cuda.graph(graph):
            y = torch.relu(loop.x)
            addresses.append(y.data_ptr())

    loop.turn(within)
    assert not any(begin <= addresses[0] < end for begin, end in arena)
    loop.turn()
    graph.reset()


def test_out_of_memory_for_the_arena_gives_the_plans_up(dry):
    stowage.enable()
    loop = Loop()
    for _ in range(3):
        loop.turn()
    assert planned()["runs"] == 0
    free, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (3 << 20)) / total)
    try:
        loop.turn()
    except torch.OutOfMemoryError:
        pass  # nor is there room for the step itself
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    loop.turn()
    assert any("the plans of steps are given up: cannot have the arena of" in note for note in stowage.status()["notes"])


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_steps_on_a_named_device(dry, device):
    stowage.enable()
    x = torch.zeros(512, 256, device=device)
    for _ in range(6):
        with stowage.step(device):
            (x + 1).exp().sum()
    name = "cpu" if device == "cpu" else "cuda:0"
    steps = next(each for each in stowage.status()["steps"] if each["device"] == name)
    assert steps["planned_steps"] >= 3
