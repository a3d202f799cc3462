# SPDX-License-Identifier: Apache-2.0
"""Runs a TorchScript program unplanned and planned, and compares them byte by byte."""

from __future__ import annotations

from typing import Any, Callable

import stowage
import torch
from twins import digest

#: TorchScript profiles in the first call and stowage in two more; the rest are planned.
CALLS = 8
#: Elements of `vector`.
SIZE = 3000


def compile(source: str) -> Callable:
    """A fresh TorchScript function from the text of `def step(...)`."""
    return torch.jit.CompilationUnit(source).step


def run(function: Callable, make_inputs: Callable[[], tuple], calls: int = CALLS, keep: bool = False) -> list:
    """Everything that calls of `function` show: outputs, inputs afterwards, the random generator.

    With `keep` the outputs of all calls are held until the end, and looked at again then.
    """
    seen, kept = [], []
    for call in range(calls):
        torch.manual_seed(call)
        inputs = make_inputs()
        with torch.no_grad():
            outputs = function(*inputs)
        seen.append([digest(outputs), digest(inputs), digest(torch.get_rng_state())])
        if keep:
            kept.append(outputs)
    return seen + [digest(outputs) for outputs in kept]


def newest_region() -> dict:
    return [region for region in stowage.status()["regions"] if region["alive"]][-1]


def planned_phase(min_runs: int = 3, min_hits: int = 1) -> dict:
    """The newest region's plan in force, which has been followed at least `min_runs` times."""
    phase = newest_region()["phases"][0]
    assert phase["state"] == "planned", phase
    assert phase["runs"] >= min_runs and phase["last"]["hits"]["allocations"] >= min_hits, phase
    return phase


def vector() -> torch.Tensor:
    return torch.randn(SIZE)


def reused(phase: dict, which: str = "last") -> int:
    return phase[which]["reused"]["allocations"]


def held(phase: dict) -> int:
    return phase["last"]["misses"]["held"]["allocations"]


def plan_text() -> str:
    return stowage.planned_graph().split(": the plan", 1)[1]


def assert_same(source: str, make_inputs: Callable[[], tuple], keep: bool = False, min_hits: int = 1) -> dict:
    """Planned equals unplanned, and was planned. Returns the phase; the function stays alive in it."""
    stowage.disable()
    unplanned = run(compile(source), make_inputs, keep=keep)
    stowage.enable()
    function = compile(source)
    assert run(function, make_inputs, keep=keep) == unplanned
    phase = planned_phase(min_hits=min_hits)
    phase["function"] = function
    return phase
