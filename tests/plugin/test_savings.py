# SPDX-License-Identifier: Apache-2.0
"""What a plan must save on real models at full size."""

import pytest
import stowage
import torch
import torchvision
from planning import planned_phase


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_model", "batch", "most"), [(torchvision.models.alexnet, 32, 0.79), (torchvision.models.resnet18, 1, 0.86)],
    ids=["alexnet", "resnet18"],
)
def test_planned_peak(make_model, batch, most):
    """By the allocator's own count of live bytes, not by what the plan says."""
    stowage.set_option("poison", "0")
    stowage.set_option("meter", "1")
    stowage.enable()
    torch.manual_seed(0)
    outside = stowage.status()["meter"]["live_bytes"]
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    step = stowage.capture(model, torch.nn.functional.cross_entropy, optimizer, x, y, strict=True)
    peaks = []
    for _ in range(6):
        torch.ops.stowage.reset_peak()
        step(x, y)
        peaks.append(stowage.status()["meter"]["peak_bytes"] - outside)
    unplanned, planned = peaks[2], peaks[-1]  # the third step is profiled, in program order
    phase = planned_phase()
    assert planned <= most * unplanned
    assert planned == pytest.approx(phase["peak_bytes"], rel=0.001)
    assert unplanned == pytest.approx(phase["program_peak_bytes"], rel=0.01)
    assert phase["arena_bytes"] <= 1.01 * phase["arena_bound_bytes"]
    upstream = sum(count["bytes"] for count in phase["last"]["misses"].values())
    assert phase["last"]["hits"]["bytes"] >= 0.99 * (phase["last"]["hits"]["bytes"] + upstream)
