# SPDX-License-Identifier: Apache-2.0
"""Captured steps that copy tensors to host memory and back to stay within a budget. Dry CUDA shows what they take of
the device, and that no stream touches memory that another still works on."""

import re

import pytest
import stowage
import torch
from offload_ops import step as step_by_hand
from planning import newest_region
from torch import nn

#: Steps until a plan is followed: two runs of the program and two of each of three proposals, at most.
WARM_UP = 8
STEADY = 4
FAST = str(10**12)  # a link that carries a MB in a microsecond


class Draws(nn.Module):
    """What its layers leave for the backward cannot be made again: masks, and what is behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.dropout(layer(x), 0.5, self.training)
        return x


def training():
    model = Draws().cuda()
    x, y = torch.zeros(2048, 512, device="cuda"), torch.zeros(2048, dtype=torch.long, device="cuda")
    step = stowage.capture(model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), x, y,
                           strict=True)
    return lambda: step(x, y)


def phase() -> dict:
    found = newest_region()["phases"][0]
    assert found["state"] == "planned", found
    return found


def copies() -> list[str]:
    plan = stowage.planned_graph().split(": the plan", 1)[1]
    return re.findall(r"stowage::(offloaded|offload|fetch|arrive)\(", plan)


@pytest.fixture(autouse=True)
def options():
    stowage.set_option("deadline_ms", "1000")
    yield
    for option, default in {"offload": "1", "offload_bandwidth": "", "budget": "", "deadline_ms": "10000"}.items():
        stowage.set_option(option, default)


def budget_after_steps(step) -> dict:
    for _ in range(WARM_UP + STEADY):
        step()
    return phase()["budget"]


def fitted(budget: str, **options: str):
    for option, value in options.items():
        stowage.set_option(option, value)
    stowage.enable(budget=budget)
    step = training()
    budget_after_steps(step)
    return step


def test_copies_meet_a_budget_that_running_again_does_not(dry):
    step = fitted("1", offload="0")
    alone = phase()["budget"]
    assert copies() == [] and alone["copied_bytes"] == 0 and not alone["met"]
    stowage.disable()
    limit = alone["needed_bytes"] - (4 << 20)
    step = fitted(str(limit), offload="1", offload_bandwidth=FAST)
    found = phase()
    budget = found["budget"]
    assert budget["met"] and budget["needed_bytes"] <= limit
    assert budget["copied_bytes"] > 0
    points = copies()
    assert {points.count(kind) for kind in ("offload", "offloaded", "fetch", "arrive")} == {len(points) // 4}
    assert found["runs"] >= STEADY
    assert found["last_peak_bytes"] == budget["needed_bytes"]
    assert found["last"]["late_frees"] == 0
    assert 1 <= budget["predicted_time_ratio"]


def test_what_the_link_carries_is_measured_unless_it_is_said(dry):
    step = fitted("0.5")
    assert phase()["budget"]["copied_bytes"] > 0  # on dry CUDA copies are fast
    stowage.set_option("offload_bandwidth", "1")
    assert budget_after_steps(step)["copied_bytes"] == 0


def test_steady_steps_wait_on_no_host_and_keep_their_host_memory(dry, witness):
    step = fitted("0.5", offload_bandwidth=FAST)
    count = len(copies()) // 4
    assert count > 0
    step()
    allocated = torch.cuda.host_memory_stats()["num_host_alloc"]
    dry.reset_counts()
    with dry.held_events(), witness():
        for _ in range(STEADY):
            step()
        counts = dry.counts()
    assert counts["synchronizations"] == 0
    assert counts["copies"] == 2 * count * STEADY
    # Each copy waits for what uses the device's memory and for the last one of the host's, and is waited for.
    assert counts["stream_waits"] == 6 * count * STEADY
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == allocated


@pytest.mark.parametrize("behind", ("%b", "%d"))
def test_a_step_that_fails_leaves_no_copy_that_others_could_meet(dry, witness, behind):
    function = step_by_hand(behind)
    x = torch.zeros(1 << 20, device="cuda")
    with torch.no_grad(), dry.held_events(), witness():
        for _ in range(3):
            with pytest.raises(torch.jit.Error, match="the step failed"):
                function(x, True)
            others = [torch.empty_like(x) for _ in range(4)]
            function(x, False)
            del others
