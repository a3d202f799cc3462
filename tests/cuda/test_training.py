# SPDX-License-Identifier: Apache-2.0
"""Whole training on dry CUDA. What it computes only a real device shows; what it takes of the device, this does."""

import pytest
import stowage
import torch
from torch import nn

cross_entropy = nn.functional.cross_entropy


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(16 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(8, 3, 16, 16, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")


def regions() -> list[dict]:
    return [region for region in stowage.status()["regions"] if region["alive"]]


def planned_runs() -> int:
    """Of graphs and of steps."""
    steps = sum(device["planned_steps"] for device in stowage.status()["steps"])
    return steps + sum(phase.get("runs", 0) for region in regions() for phase in region["phases"])


def captured_step():
    model, (x, y) = net(), batch()
    step = stowage.capture(model, cross_entropy, torch.optim.Adam(model.parameters()), x, y, strict=True)
    return lambda: step(x, y)


def test_a_captured_step_is_planned_and_nothing_overlaps(dry, witness):
    stowage.enable()
    step = captured_step()
    for _ in range(8):
        step()
    (region,) = regions()
    assert region["phases"][0]["runs"] >= 3, region
    hits = region["phases"][0]["last"]["hits"]["allocations"]
    assert hits > 10
    with dry.held_events(), witness():
        for _ in range(3):
            step()
    last = regions()[0]["phases"][0]["last"]
    assert last["hits"]["allocations"] == hits
    assert last["late_frees"] == 0
    assert {reason: count["allocations"] for reason, count in last["misses"].items() if reason != "escapes"} == {
        "unplanned": 0, "too_large": 0, "busy": 0, "held": 0, "stream": 0}


def test_accumulation_and_evaluation_are_phases_of_their_own(dry, witness):
    stowage.enable()
    model, (x, y) = net(), batch()
    scripted = torch.jit.script(model)
    optimizer = torch.optim.Adam(model.parameters())

    def micro_step():
        cross_entropy(scripted(x), y).backward()

    def train(steps: int):
        for step in range(1, steps + 1):
            for _ in range(4):
                micro_step()
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                scripted.eval()
                with torch.no_grad():
                    scripted(x)
                scripted.train()

    train(20)
    before = planned_runs()
    assert before > 0, regions()
    with dry.held_events(), witness():
        train(5)
    assert planned_runs() - before >= 20  # a micro-step is one, at least
    for region in regions():
        for phase in region["phases"]:
            assert phase["state"] != "unplanned", (region["name"], phase)
            if phase["state"] == "planned":
                # Nobody else's runs take a plan's positions.
                misses = phase["last"]["misses"]
                assert misses["unplanned"]["allocations"] == misses["too_large"]["allocations"] == 0


def steady_counts(dry, step, plan: str) -> dict:
    stowage.set_option("plan", plan)
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    dry.reset_counts()
    for _ in range(5):
        step()
    return {name: dry.counts()[name] for name in ("driver_mallocs", "driver_frees", "synchronizations", "stream_waits")}


@pytest.mark.parametrize("poison", ["0", "1"])
def test_the_steady_state_asks_no_more_of_the_driver(dry, poison):
    stowage.enable()
    stowage.set_option("poison", poison)
    try:
        step = captured_step()
        unplanned = steady_counts(dry, step, "0")
        planned = steady_counts(dry, step, "1")
        assert planned_runs() >= 10
        assert planned["driver_mallocs"] == planned["driver_frees"] == 0
        assert all(planned[name] <= unplanned[name] for name in unplanned), (planned, unplanned)
    finally:
        stowage.set_option("plan", "1")


def test_the_plan_reserves_no_more(dry):
    """In the steady state, after the caches of the profile runs have been given back."""
    step = captured_step()
    stowage.enable()
    stowage.set_option("plan", "0")
    for _ in range(8):
        step()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    unplanned = torch.cuda.max_memory_allocated()
    stowage.set_option("plan", "1")
    for _ in range(8):
        step()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    assert planned_runs() >= 3
    assert torch.cuda.max_memory_allocated() <= unplanned
