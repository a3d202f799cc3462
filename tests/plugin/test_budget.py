# SPDX-License-Identifier: Apache-2.0
"""A captured step within a budget: ops run again, nothing else tells it from the unplanned one."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch
from budgeting import (MODELS, OPTIMIZERS, PLANNED, WARM_UP, Encoder, Training, budget_of, lowest, phase, run_again, tokens)
from planning import newest_region
from torch import nn


@pytest.fixture(autouse=True)
def short_searches():
    stowage.set_option("deadline_ms", "10000")


# --- the same numbers ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_five_budgets_are_kept_and_change_nothing(model, optimizer):
    calls = WARM_UP + PLANNED
    expected = Training(*MODELS[model], optimizer).run(7 * calls)
    stowage.enable()
    training = Training(*MODELS[model], optimizer)
    seen = training.run(calls)
    planned = phase()["last_peak_bytes"]
    least = lowest(training)
    assert least < 0.95 * planned
    for part in (0.96, 0.8, 0.64, 0.48, 0.32):  # the least depends on how long each op took
        limit = int(least + part * (planned - least))
        stowage.set_option("budget", str(limit))
        begin = training.calls
        seen = training.run(calls)
        assert seen == expected[begin : begin + calls]
        budget = budget_of(phase())
        assert budget["limit_bytes"] == limit and budget["met"] and budget["needed_bytes"] <= limit
        assert len(run_again()) == budget["repeated_ops"] > 0
        assert 0 < budget["bound_time_ratio"] <= budget["predicted_time_ratio"]


def test_each_execution_is_verified_against_the_program(capfd):
    stowage.enable(budget=0.7, verify=True)
    training = Training()
    training.run(WARM_UP + PLANNED)
    region = newest_region()
    assert phase()["budget"]["repeated_ops"] > 0
    assert region["verified_runs"] >= PLANNED and region["differing_runs"] == region["unverified_runs"] == 0
    assert "differs" not in capfd.readouterr().err


def test_slowdown_takes_the_least_memory_that_it_allows():
    expected = Training().run(WARM_UP + PLANNED)
    stowage.enable(slowdown=3)
    training = Training()
    assert training.run(WARM_UP + PLANNED) == expected
    budget = budget_of(phase())
    assert budget["limit_bytes"] is None and budget["met"]
    assert budget["limit_time_ratio"] == pytest.approx(3, abs=1e-3)
    assert budget["predicted_time_ratio"] <= 3 and budget["repeated_ops"] > 0
    assert budget["needed_bytes"] < budget["unplanned_peak_bytes"]


@pytest.mark.parametrize("budget", ["", "0.9"])
def test_ops_are_timed_unplanned_and_while_the_program_s_plan_is_followed(budget):
    """A profiled run tells neither. Two runs and three; none where there is nothing to choose."""
    stowage.set_option("budget", budget)
    stowage.enable()
    training = Training()
    training.run(2)  # the first is TorchScript's
    while not any(phase["state"] == "planned" for phase in newest_region()["phases"]):
        assert training.calls < WARM_UP
        training.run(1)
    region = newest_region()
    followed = region["executions"] - region["runs_as_is"] - region["runs_profiled"]
    assert (followed, region["runs_profiled"]) == ((5, 4) if budget else (0, 2))


def test_times_are_held_against_the_unplanned_step(tmp_path):
    stowage.enable(tmp_path / "profile.db", budget=0.8)
    training = Training()
    training.run(WARM_UP + PLANNED)
    with sqlite3.connect(tmp_path / "profile.db") as store:
        [(unplanned_ns, predicted_ns)] = store.execute("SELECT unplanned_ns, predicted_ns FROM budgets")
        [(planned_ns,)] = store.execute("SELECT sum(duration_ns) FROM ops WHERE run_id = (SELECT min(id) FROM runs)")
    assert planned_ns < predicted_ns, "what runs again takes time"
    assert unplanned_ns not in (planned_ns, predicted_ns), "it is measured in runs of its own"
    assert budget_of(phase())["predicted_time_ratio"] == pytest.approx(predicted_ns / unplanned_ns)


def test_another_budget_makes_another_plan_and_an_earlier_one_is_remembered(tmp_path):
    stowage.enable(tmp_path / "profile.db", budget=0.95)
    training = Training()
    training.run(WARM_UP + PLANNED)
    first = budget_of(phase())
    stowage.set_option("budget", "0.85")
    training.run(WARM_UP + PLANNED)
    second = budget_of(phase())
    assert second["needed_bytes"] <= second["limit_bytes"] < first["needed_bytes"] <= first["limit_bytes"]
    assert stowage.status()["arena_bytes"] == phase()["arena_bytes"]  # the larger one is gone
    profiled = newest_region()["runs_profiled"]
    stowage.set_option("budget", "0.95")
    training.run(PLANNED)
    assert phase()["recalled"] and budget_of(phase()) == first
    assert newest_region()["runs_profiled"] == profiled


# --- what runs again ----------------------------------------------------------------------------------------------

def test_random_ops_never_run_again():
    stowage.enable(budget="1")
    training = Training(Encoder, tokens)
    training.run(WARM_UP + PLANNED)
    program = stowage.planned_graph().split(": the plan", 1)[0]
    draws = {kind for kind in re.findall(r"= (aten::\w+)\(", program) if re.search("dropout|bernoulli|rand", kind)}
    draws -= {"aten::native_dropout_backward"}
    assert draws, "the program draws nothing"
    assert run_again() and not draws & set(run_again())


def test_batch_norms_run_again_without_their_statistics():
    stowage.enable(budget="1")
    training = Training()
    training.run(WARM_UP + PLANNED)
    assert "aten::_native_batch_norm_legit" in run_again()
    plan = stowage.planned_graph().split(": the plan", 1)[1]
    for line in re.findall(r"^.*\.run\d+ .*batch_norm.*$", plan, re.MULTILINE):
        assert "running" not in line, line


class Late(nn.Module):
    """Needs exp(offset) before its peak and in the backward; with `writes` offset is another by then."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes
        self.register_buffer("offset", torch.randn(4, 4096))
        self.weight = nn.Parameter(torch.randn(1))

    def forward(self, x):
        hidden = torch.exp(self.offset) * self.weight
        if self.writes:
            self.offset.add_(1)
        return torch.cat([hidden + self.offset, x, x, x]).cumsum(0).tanh()


@pytest.mark.parametrize("writes", [False, True])
def test_an_op_does_not_run_again_once_its_input_is_written(writes):
    def train() -> tuple[list, Training]:
        training = Training(lambda: Late(writes), lambda: (torch.randn(4, 4096), torch.zeros(())), loss_fn=lambda output, target: output.mean() - target)
        return training.run(WARM_UP + PLANNED), training

    expected, _ = train()
    stowage.enable(budget="1")
    seen, training = train()
    assert seen == expected
    assert ("aten::exp" in run_again()) == (not writes)


# --- budgets that cannot be kept ----------------------------------------------------------------------------------

def text(found: dict, name: str) -> str:
    def size(count: int) -> str:
        unit = next((name, factor) for name, factor in (("MiB", 2**20), ("KiB", 2**10), ("B", 1)) if count >= factor or factor == 1)
        return f"{count} B" if unit[1] == 1 else f"{count} B ({count / unit[1]:.2f} {unit[0]})"

    budget = found["budget"]
    is_proven = found["peak_bytes"] <= budget["bound_peak_bytes"]
    why = "proven: no schedule needs less" if is_proven else f"none below {size(budget['bound_peak_bytes'])} is possible"
    return (f"cannot keep '{name}' within {size(budget['limit_bytes'])}: the least that was found is "
            f"{size(budget['needed_bytes'])} ({why})")


def test_step_goes_on_with_the_least_that_was_found(capfd):
    expected = Training().run(WARM_UP + PLANNED)
    stowage.enable(budget="2KiB")
    training = Training()
    assert training.run(WARM_UP + PLANNED) == expected
    budget = budget_of(phase())
    assert budget["limit_bytes"] == 2048 and not budget["met"]
    told = text(phase(), newest_region()["name"]) + "; it goes on with that"
    assert told in stowage.status()["notes"]
    assert capfd.readouterr().err.count(told) == 1


def test_step_stops_each_time_and_leaves_everything_as_it_was():
    calls = WARM_UP + PLANNED
    expected = Training().run(2 * calls)
    stowage.enable(budget="2KiB", over_budget="stop")
    training = Training()
    seen = []
    with pytest.raises(RuntimeError) as raised:
        for _ in range(calls):
            seen += training.run(1)
    told = text(phase(), newest_region()["name"]) + "; give it more, or set over_budget to 'continue'"
    assert told in str(raised.value)
    assert told not in stowage.status()["notes"]
    assert seen == expected[: len(seen)]
    state = training.state()
    with pytest.raises(RuntimeError, match="cannot keep"):
        training.step(*training.batch)
    assert training.state() == state
    stowage.set_option("over_budget", "continue")
    training.calls = len(seen)
    assert training.run(calls) == expected[len(seen) : len(seen) + calls]


def test_a_budget_that_is_kept_anyhow_repeats_nothing():
    stowage.enable(budget="1GiB")
    training = Training()
    training.run(WARM_UP + PLANNED)
    budget = budget_of(phase())
    assert budget["met"] and budget["repeated_ops"] == 0 and budget["predicted_time_ratio"] == 1
    assert newest_region()["runs_profiled"] == 2
    assert run_again() == []


def test_scripted_modules_are_told_that_they_have_none(capfd):
    stowage.enable(budget=0.5)
    network = torch.jit.script(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 10), nn.Tanh()))
    for _ in range(8):
        network(torch.randn(6, 20)).sum().backward()
    told = "stowage: a budget holds for captured steps only: loops and scripted modules are planned without one"
    told_before = told.removeprefix("stowage: ") in stowage.status()["notes"]
    assert told_before and capfd.readouterr().err.count(told) <= 1


# --- recall and options -------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
import stowage, torch
sys.path.insert(0, sys.argv[2])
from budgeting import PLANNED, WARM_UP, Training
torch.set_num_threads(1)
stowage.set_option("poison", "1")
stowage.set_option("deadline_ms", "10000")
stowage.enable(sys.argv[1], budget=0.7)
training = Training()
seen = training.run(WARM_UP + PLANNED)
print(json.dumps({"seen": repr(seen[-1]), "region": stowage.status()["regions"][-1], "plan": stowage.planned_graph()}))
"""


def run_program(store: Path) -> dict:
    here = Path(__file__).parent
    paths = [str(Path(stowage.__file__).parents[1]), str(here), str(here.parent / "capture"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(store), str(here)], capture_output=True, text=True,
                          check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    return json.loads(done.stdout)


def test_second_process_runs_the_same_ops_again_and_profiles_nothing(tmp_path):
    first, second = (run_program(tmp_path / "profile.db") for _ in range(2))
    assert first["region"]["runs_profiled"] >= 4 and second["region"]["runs_profiled"] == 0
    assert second["region"]["plans_recalled"] == 1
    budgets = [result["region"]["phases"][0]["budget"] for result in (first, second)]
    assert budgets[0] == budgets[1] and budgets[0]["repeated_ops"] > 0
    assert second["plan"] == first["plan"]
    assert second["seen"] == first["seen"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"budget": "6G"}, "cannot set option 'budget' to '6G': it takes bytes, such as '6GiB', '512MiB' or '123456', or a "
                           "share of the unplanned peak, such as '0.5'"),
        ({"budget": 1.5}, "cannot set option 'budget' to '1.500000': it takes bytes"),
        ({"budget": "0"}, "cannot set option 'budget' to '0': it takes bytes"),
        ({"budget": "-1GiB"}, "cannot set option 'budget' to '-1GiB': it takes bytes"),
        ({"slowdown": 0.9}, "cannot set option 'slowdown' to '0.900000': it takes how many times as long as unplanned a step "
                            "may take, from 1, such as '1.05'"),
        ({"over_budget": "halt"}, "cannot set option 'over_budget' to 'halt': it takes 'continue' or 'stop'"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(Exception) as raised:
        stowage.enable(**arguments)
    assert text in str(raised.value)


def test_enable_without_a_budget_ends_the_one_that_it_began():
    def options() -> list[str]:
        return [stowage.status()["options"][name] for name in ("budget", "slowdown", "over_budget")]

    stowage.enable(budget="1.5 GiB", slowdown=1.1, over_budget="stop")
    assert options() == ["1.5 GiB", "1.100000", "stop"]
    stowage.enable()
    assert options() == ["", "", "continue"]


def test_budget_that_was_set_as_an_option_stays():
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    program = "import stowage; stowage.enable(); print(stowage.status()['options']['budget'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": path, "STOWAGE_BUDGET": "6GiB"})
    assert done.stdout == "6GiB\n"
