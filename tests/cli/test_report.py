# SPDX-License-Identifier: Apache-2.0
"""What `report` says of steps, and of graphs within budgets."""

import pytest

from stowage.reporting import render


def phase(**changes: object) -> dict:
    none = {"allocations": 0, "bytes": 0}
    counters = {"hits": {"allocations": 27, "bytes": 900}, "reused": none,
                "misses": {"busy": {"allocations": 2, "bytes": 64}, "unplanned": {"allocations": 1, "bytes": 32}}}
    return {"state": "planned", "runs": 9, "eager_peak_bytes": 3 << 20, "peak_bytes": 2 << 20, "arena_bytes": 4 << 20,
            "arena_bound_bytes": 2 << 20, "planning_ns": 250_000_000, "plans_made": 1, "recalled": False,
            "last": counters, "total": counters, **changes}


def status(*devices: dict, notes: tuple[str, ...] = ()) -> dict:
    return {"regions": [], "left_alone": [], "steps": list(devices), "notes": list(notes), "store": ""}


def device(*phases: dict, **changes: object) -> dict:
    return {"device": "cpu", "steps": 12, "planned_steps": 9, "bytes": 1000, "planned_bytes": 973,
            "phases": list(phases), **changes}


def test_a_row_for_each_planned_kind_of_step() -> None:
    text = render(status(device(phase(), phase(runs=1, plans_made=0, recalled=True)), device(device="cuda:1", steps=0)))
    assert text == """\
graph        runs  peak before  peak after     bound     arena  hits  reused  misses  planned in
step on cpu     9     3.00 MiB           -  2.00 MiB  4.00 MiB    27       -       3      0.25 s
step on cpu     1     3.00 MiB           -  2.00 MiB  4.00 MiB    27       -       3      0.25 s
plans made: 1, recalled from the store: 1, runs profiled: 0
steps on cpu: 12, of which 9 followed a plan; 97.3 % of bytes from plans"""


def test_steps_that_are_not_planned() -> None:
    why = "steps that begin with an allocation of 4096 B are not planned: no two of 8 were alike: ..."
    text = render(status(device({"state": "profiling"}, planned_steps=0, planned_bytes=0),
                         notes=(why, "something else of no concern")))
    assert text.splitlines() == [
        "nothing is planned yet",
        "steps on cpu: 12, of which 0 followed a plan; 0.0 % of bytes from plans",
        "steps on cpu: 1 kind of step waits to be met again; a plan takes two that are alike",
        why,
    ]
    two = render(status(device(phase(), {"state": "profiling"}, {"state": "profiling"})))
    assert two.splitlines()[-1] == "steps on cpu: 2 kinds of step wait to be met again; a plan takes two that are alike"


BUDGET = {"limit_bytes": 1300 << 20, "unplanned_peak_bytes": 2468 << 20, "met": True, "repeated_ops": 148,
          "predicted_time_ratio": 1.0512, "bound_time_ratio": 1.0287, "status": "feasible"}


@pytest.mark.parametrize(("budget", "line"), [
    (BUDGET, "ResNet: 1.21 GiB of 2.41 GiB unplanned, 148 ops run again, predicted step time 1.05 (no schedule below 1.03)"),
    ({**BUDGET, "limit_bytes": 1 << 30, "met": False, "repeated_ops": 1},
     "ResNet: 1.21 GiB of 2.41 GiB unplanned, 1 op runs again, predicted step time 1.05 (no schedule below 1.03); "
     "over the budget of 1.00 GiB"),
    ({**BUDGET, "limit_bytes": None, "met": False},
     "ResNet: 1.21 GiB of 2.41 GiB unplanned, 148 ops run again, predicted step time 1.05 (no schedule below 1.03); "
     "over the step time asked for"),
    (None, "plans made: 1, recalled from the store: 0, runs profiled: 3"),
])
def test_what_a_budget_took(budget: dict | None, line: str) -> None:
    planned = phase(program_peak_bytes=2468 << 20, peak_bytes=1239 << 20, bound_bytes=1 << 30, budget=budget)
    region = {"name": "ResNet", "phases": [planned], "plans_made": 1, "plans_recalled": 0, "runs_profiled": 3}
    assert render({**status(), "regions": [region]}).splitlines()[-1] == line
