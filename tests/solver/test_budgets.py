# SPDX-License-Identifier: Apache-2.0
"""`stowage-solve budget` finds the least time of small steps within a budget, whatever it repeats and in whichever
order: that of an integer program. A failure names the files of the steps."""

import json
import subprocess
from pathlib import Path

from solver.budget_model import BudgetModel
from solver.budget_steps import budget_step

# For the walk that comes before the exact search: it has nothing to add on steps as small as these.
NODE_LIMIT = "20000"
STEPS = [budget_step(seed, 5 + seed % 3) for seed in range(200)]


def run(solver: Path, path: Path, budget_bytes: int) -> dict:
    result = subprocess.run([solver, "budget", path, "--budget", f"{budget_bytes}B", "--json", "--node-limit",
                             NODE_LIMIT], capture_output=True, text=True)
    assert result.returncode in (0, 1), f"{path}: {result.stderr}"
    answer = json.loads(result.stdout)
    return {**answer["rows"][0], "is_met": result.returncode == 0, "least_peak_bytes": answer["least_peak_bytes"],
            "bound_peak_bytes": answer["bound_peak_bytes"], "file": f"{path} at {budget_bytes} B"}


def faults_in(answer: dict, budget_bytes: int, time_ns: int) -> list[str]:
    """What is claimed wrongly of a budget that can be met, given the least time."""
    faults = []
    if answer["time_ns"] != time_ns or answer["status"] != "optimal" or not answer["is_met"]:
        faults.append(f"{answer['file']}: {answer['status']}, {answer['time_ns']} ns, least {time_ns} ns")
    if answer["peak_bytes"] > budget_bytes:
        faults.append(f"{answer['file']}: peak {answer['peak_bytes']} B")
    return faults


def test_small_steps_take_the_least_time_of_an_integer_program(solver, tmp_path):
    faults: list[str] = []
    slower = 0
    for step in STEPS:
        path = tmp_path / f"{step['name'].replace(' ', '-')}.json"
        path.write_text(json.dumps(step))
        model = BudgetModel(step)
        least, unplanned = model.least_peak_bytes(), model.step.lowest_peak_bytes()
        for budget_bytes in {least, (least + unplanned) // 2, max(least, unplanned - 1)}:
            time_ns = model.least_time_ns(budget_bytes)
            slower += time_ns > model.unplanned_time_ns()
            faults += faults_in(run(solver, path, budget_bytes), budget_bytes, time_ns)

        answer = run(solver, path, least - 1)
        if answer["status"] != "infeasible" or answer["is_met"] or answer["least_peak_bytes"] != least:
            faults.append(f"{answer['file']}: {answer['status']}, least {answer['least_peak_bytes']} B, not {least} B")
        if answer["bound_peak_bytes"] > least:
            faults.append(f"{answer['file']}: bound {answer['bound_peak_bytes']} B, least {least} B")
    print(f"{slower} budgets of {len(STEPS)} steps need repeats")
    assert not faults, "\n".join(faults)
    assert slower > 150
