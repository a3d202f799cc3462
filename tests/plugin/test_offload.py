# SPDX-License-Identifier: Apache-2.0
"""The operators that copy a tensor to host memory and back, on the CPU, and steps in which they stand."""

import re

import pytest
import stowage
import torch
from offload_ops import step
from planning import newest_region, planned_phase
from budgeting import PLANNED, WARM_UP, Encoder, Training, budget_of, phase, tokens

FAST = str(10**15)


@pytest.fixture(autouse=True)
def options():
    stowage.set_option("deadline_ms", "1000")
    yield
    stowage.set_option("offload_bandwidth", "")


def tensors():
    base = torch.arange(60.0).reshape(3, 4, 5) / 60
    yield base
    yield base.transpose(0, 2)  # what `exp` makes of it has these strides too
    yield base.to(torch.float64)[:0]
    yield base.bfloat16()


def test_what_comes_back_is_what_left():
    function = step()
    for x in tensors():
        for _ in range(2):
            with torch.no_grad():
                result, back = function(x, False)
            left = x.exp()
            assert torch.equal(back, left) and back.stride() == left.stride() and back.dtype == left.dtype
            assert torch.equal(result, left + x.sin().cos() ** 2)
            assert back.untyped_storage().nbytes() == left.untyped_storage().nbytes()


@pytest.mark.parametrize("behind", ("%b", "%d"))
def test_a_step_that_fails_leaves_nothing_behind(behind):
    function = step(behind)
    x = torch.rand(7)
    for _ in range(3):
        with torch.no_grad():
            with pytest.raises(torch.jit.Error, match="the step failed"):
                function(x, True)
            result, back = function(x, False)
        assert torch.equal(back, x.exp()) and torch.equal(result, x.exp() + x.sin().cos() ** 2)


def test_nothing_moves_across_a_copy():
    stowage.enable()
    function = step()
    x = torch.rand(3000)
    for _ in range(8):
        with torch.no_grad():
            result, back = function(x, False)
        assert torch.equal(back, x.exp()) and torch.equal(result, x.exp() + x.sin().cos() ** 2)
    assert planned_phase()["last"]["late_frees"] == 0
    plan = stowage.planned_graph().split(": the plan", 1)[1]
    kinds = ["exp", "offload", "sin", "offloaded", "cos", "fetch", "mul", "arrive", "add"]
    places = [plan.index(f"::{kind}(") for kind in kinds]
    assert places == sorted(places), plan


def test_copies_change_nothing_where_running_again_is_not_enough():
    calls = WARM_UP + PLANNED
    expected = Training(Encoder, tokens).run(3 * calls)
    stowage.enable(budget="1")
    training = Training(Encoder, tokens)
    seen = training.run(calls)
    alone = budget_of(phase())
    assert alone["copied_bytes"] == 0
    stowage.set_option("offload_bandwidth", FAST)
    for limit in ("1", str(alone["needed_bytes"] - 1)):
        stowage.set_option("budget", limit)
        seen += training.run(calls)
        budget = budget_of(phase())
        assert budget["copied_bytes"] > 0 and budget["needed_bytes"] < alone["needed_bytes"]
        assert re.search("dropout|bernoulli", stowage.planned_graph())
    assert budget["met"]
    assert seen == expected


def test_steps_with_copies_are_verified_against_the_program(capfd):
    stowage.set_option("offload_bandwidth", FAST)
    stowage.enable(budget="1", verify=True)
    training = Training(Encoder, tokens)
    training.run(WARM_UP + PLANNED)
    region = newest_region()
    assert phase()["budget"]["copied_bytes"] > 0
    assert region["verified_runs"] >= PLANNED and region["differing_runs"] == region["unverified_runs"] == 0
    assert "differs" not in capfd.readouterr().err


def test_a_plan_with_copies_is_made_anew_from_a_store(tmp_path):
    stowage.set_option("offload_bandwidth", FAST)
    stowage.enable(tmp_path / "profile.db", budget="1")
    training = Training(Encoder, tokens)
    training.run(WARM_UP + PLANNED)
    first = budget_of(phase())
    stowage.disable()
    stowage.enable(tmp_path / "profile.db", budget="1")
    again = Training(Encoder, tokens)
    again.run(WARM_UP + PLANNED)
    assert not phase()["recalled"] and budget_of(phase())["needed_bytes"] == first["needed_bytes"]
