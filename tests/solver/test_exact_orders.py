# SPDX-License-Identifier: Apache-2.0
"""`stowage-solve order` finds the lowest peak there is: of small steps by trying every order, of larger ones by an
integer program. A failure names the files of the steps, to be planned again."""

import json

import pytest

from solver.integer_program import PeakProgram
from solver.small_steps import random_step, training_step
from solver.step_model import StepModel

SMALL = [random_step(seed, min(10, 1 + seed % 15), with_reuse=seed % 2 == 1) for seed in range(1000)]
LARGER_OPS = [40 if seed % 5 == 0 else 11 + seed * 7 % 30 for seed in range(50)]
LARGER = [step for seed, ops in enumerate(LARGER_OPS)
          for step in (training_step(seed, ops), random_step(seed, ops, with_reuse=True))]


def faults_in(planned: dict, lowest: int) -> list[str]:
    """What is claimed wrongly, given the lowest peak of all orders."""
    faults = []
    if planned["peak_bytes"] != lowest:
        faults.append(f"{planned['file']}: peak {planned['peak_bytes']} B, lowest {lowest} B")
    if planned["bound_bytes"] > lowest:
        faults.append(f"{planned['file']}: bound {planned['bound_bytes']} B, lowest {lowest} B")
    if (planned["status"] == "optimal") != (planned["peak_bytes"] == planned["bound_bytes"]):
        faults.append(f"{planned['file']}: {planned['status']} with bound {planned['bound_bytes']} B")
    return faults


def check(planned: list[dict], lowest: list[int]) -> None:
    faults = [fault for plan, bytes_ in zip(planned, lowest, strict=True) for fault in faults_in(plan, bytes_)]
    proven = sum(plan["status"] == "optimal" for plan in planned)
    print(f"{proven} of {len(planned)} proven optimal")
    assert not faults, "\n".join(faults)


def test_small_steps_get_the_lowest_peak_of_all_orders(order):
    check([order(step) for step in SMALL], [StepModel(step).lowest_peak_bytes() for step in SMALL])


def test_small_steps_get_the_lowest_peak_without_reuse(order):
    steps = [step for step in SMALL if any("reuses" in op for op in step["ops"])][::4]
    lowest = [StepModel(step).lowest_peak_bytes(with_reuse=False) for step in steps]
    assert lowest != [StepModel(step).lowest_peak_bytes() for step in steps]
    check([order(step, "--no-reuse") for step in steps], lowest)


def test_plans_can_be_replayed(order, tmp_path):
    reused = 0
    for step in [*SMALL[::5], *LARGER[::5]]:
        path = tmp_path / "plan.json"
        planned = order(step, "--plan", str(path), "--force")
        plan = json.loads(path.read_text())
        assert StepModel(step).replay(plan) == planned["peak_bytes"] == plan["peak_bytes"], planned["file"]
        reused += sum(tensor >= 0 for tensor in plan["reuse_of"])
    assert reused > 50


def test_the_integer_program_agrees_with_trying_every_order():
    for step in SMALL[4:1000:15] + SMALL[9:1000:15]:
        model = StepModel(step)
        assert PeakProgram(model).lowest_peak_bytes() == model.lowest_peak_bytes(), step["name"]


@pytest.mark.slow
def test_larger_steps_get_the_lowest_peak_of_an_integer_program(order):
    assert sum(len(step["ops"]) == 40 for step in LARGER) >= 20
    check([order(step) for step in LARGER], [PeakProgram(StepModel(step)).lowest_peak_bytes() for step in LARGER])
