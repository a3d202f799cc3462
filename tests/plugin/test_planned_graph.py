# SPDX-License-Identifier: Apache-2.0
"""The text of a planned step, whole, and what it must say whatever its details are."""

import re
from pathlib import Path

import stowage
import torch
from torch import nn

GOLDEN = Path(__file__).parents[1] / "data" / "planned_mlp.txt"


def planned_text() -> str:
    """A three-layer perceptron with plain SGD, before and after planning."""
    torch.manual_seed(0)
    stowage.enable()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(16, 64), torch.randint(10, (16,))
    step = stowage.capture(model, nn.functional.cross_entropy, optimizer, x, y, strict=True)
    for _ in range(5):
        step(x, y)
    name = [region["name"] for region in stowage.status()["regions"] if region["alive"]][-1]
    return stowage.planned_graph(name).replace(f"# {name}:", "# Sequential:")


def test_whole_text(request):
    text = planned_text()
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_updates_run_as_soon_as_they_can():
    """Between the op that makes an update possible (its gradient, or the last other reader of the weight) and the update
    there are only points and ops that the update itself needs."""
    plan = planned_text().split(": the plan")[1]
    ops = [line for line in plan.splitlines() if " = aten::" in line]
    assert len([line for line in ops if "aten::add_(%p_" in line]) == 6
    for position, line in enumerate(ops):
        update = re.search(r"aten::add_\(%(p_\w+), %(\w+),", line)
        if update is None:
            continue
        weight, gradient = update.groups()
        needed = {gradient}
        for earlier in reversed(ops[:position]):
            results, _, inputs = earlier.partition(" = aten::")
            made = set(re.findall(r"%(\w+)", results))
            taken = set(re.findall(r"%([\w.]+)", inputs))
            if weight in taken or made & needed:
                needed |= taken if made & needed else set()
                if not re.search(r"aten::(view|t)\(", earlier):
                    break  # this op made the update possible: the gradient's kernel, or the weight's last reader
                continue
            assert "aten::add_(%p_" in earlier, f"'{earlier.strip()}' runs before the update of {weight}"


def test_each_slot_is_placed_before_it_ends_and_ends_once():
    """At a free point, or where an op's result takes its memory."""
    plan = planned_text().split(": the plan")[1]
    placed, ended, reused = [], [], 0
    for line in plan.splitlines():
        if point := re.search(r"stowage::place\[op=\d+, slots=\[([\d, ]+)\]", line):
            placed += point[1].split(", ")
        if point := re.search(r"stowage::reuse\[op=\d+, slot=(\d+), of=(\d+)", line):
            placed.append(point[1])
            ended.append(point[2])
            reused += 1
        if point := re.search(r"stowage::free\[slots=\[([\d, ]+)\]", line):
            ended += point[1].split(", ")
        assert set(ended) <= set(placed)
    assert placed == [str(slot) for slot in range(len(placed))]  # numbered as they are taken
    assert sorted(ended, key=int) == placed
    assert reused == 6  # both relus and log_softmax, forward and backward
