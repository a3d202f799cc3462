# SPDX-License-Identifier: Apache-2.0
"""Runs the text of a program without and with stowage, and says where the two differ."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import stowage
import torch
from drycuda import control
from soak.faults import FAULTS
from soak.program import WATCHED_FROM
from twins import digest

#: Calls of the names of stowage in a run without it.
WITHOUT = SimpleNamespace(step=nullcontext, mark_step=lambda: None)
_texts = itertools.count()


@dataclass(frozen=True)
class Outcome:
    failure: str = ""
    invalid: str = ""  # why the program could not begin; nothing is compared then
    planned_runs: int = 0  # of regions and steps
    errors: int = 0  # that the loop caught
    seconds: float = 0.0
    ends_torch: bool = False  # the process dies without stowage, too


def load(text: str) -> Callable:
    """`train` of the text, with a module of a type of its own: TorchScript keeps what it learns of a type."""
    file = f"soak_program_{next(_texts)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # TorchScript reads it
    names: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    exec(compile(text, file, "exec"), names)
    return names["train"]


class Observations(list):
    """Labels, each with the bytes or the type of error that were seen, and what that error said."""

    planned_before = 0  # runs, until those that count

    def see(self, label: str, values: Any) -> None:
        if isinstance(values, Exception):
            self.append((label, type(values).__name__, str(values)))
        else:
            self.append((label, None if control.is_present() else digest(values), ""))

    @property
    def errors(self) -> int:
        return sum(bool(message) for _, _, message in self)


def observe(text: str, library: Any, watch: bool = False) -> Observations:
    """All that the program shows. With `watch`, dry CUDA notes memory that is given out while somebody has it, once
    plans are there, as none is made beneath the witness."""
    seen = Observations()
    if library is stowage:
        seen.planned_before = planned_runs()
    with ExitStack() as watching:

        def see(label: str, values: Any) -> None:
            seen.see(label, values)
            if watch and label == f"state of step {WATCHED_FROM}":
                seen.planned_before = planned_runs()
                control.reset_counts()
                watching.enter_context(control.held_events())
                watching.enter_context(control.witness())

        load(text)(library, see)
    return seen


def planned_runs() -> int:
    status = stowage.status()
    regions = sum(phase.get("runs", 0) for region in status["regions"] for phase in region["phases"])
    return regions + sum(device["planned_steps"] for device in status["steps"])


def observe_planned(text: str) -> tuple[Observations, int]:
    """The observations, and how many runs followed a plan."""
    stowage.set_option("poison", "1")
    if control.is_present():
        stowage.set_option("reuse", "0")  # results on their inputs' memory are given that twice
        torch.cuda.init()
    stowage.enable()
    try:
        seen = observe(text, stowage, watch=control.is_present())
        return seen, planned_runs() - seen.planned_before
    finally:
        stowage.disable()


def first_difference(unplanned: Observations, planned: Observations) -> str:
    for (label, expected, message), (planned_label, found, planned_message) in zip(unplanned, planned):
        if (label, expected) == (planned_label, found):
            continue
        if planned_message:
            return f"{planned_label}: {found}: {planned_message}"
        if message:
            return f"no {label}, which was {expected}: {message}"
        return f"{label} differ"
    return "" if len(unplanned) == len(planned) else "one of the runs ended early"


def examine(text: str, fault: str = "", alone: bool = False) -> Outcome:
    """Compares the program's two runs, or has only the one without stowage if `alone`; `fault` is one of `FAULTS`. On dry CUDA, where nothing is computed, only what
    is thrown can differ, but memory that is given out twice is a failure."""
    start = perf_counter()
    stowage.disable()
    try:
        unplanned = observe(text, WITHOUT)
    except Exception as error:
        return Outcome(invalid=f"{type(error).__name__}: {error}")
    if alone:
        return Outcome()
    try:
        planned, runs = observe_planned(FAULTS[fault](text) if fault else text)
    except Exception as error:
        return Outcome(f"only with stowage: {type(error).__name__}: {error}", errors=unplanned.errors)
    failure = first_difference(unplanned, planned)
    if not failure and control.is_present():
        failure = next(iter(control.violations()), "")
    return Outcome(failure, "", runs, unplanned.errors, perf_counter() - start)
