# SPDX-License-Identifier: Apache-2.0
"""A small step on CUDA that a test runs until it is planned, and beyond."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import stowage
import torch
from planning import compile, newest_region

ROWS = 256
#: Five tensors of ROWS x ROWS floats, two of them live at a time, and a result that escapes.
SOURCE = """
def step(x, w):
    a = torch.mm(x, w)
    b = torch.relu(a)
    c = torch.mm(b, w)
    d = torch.sigmoid(c)
    e = torch.mm(d, w)
    return torch.mm(e, w)
"""
TENSOR_BYTES = ROWS * ROWS * 4

# Python ops that a test may have do something while a step runs.
_library = torch.library.Library("stowage_test", "DEF")
_hooks: dict[str, Callable[[torch.Tensor], Any]] = {}


def _call(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def op(x: torch.Tensor) -> torch.Tensor:
        if name in _hooks:
            _hooks[name](x)
        return x * 1

    return op


for _name in ("first", "second"):
    _library.define(f"{_name}(Tensor x) -> Tensor")
    _library.impl(_name, _call(_name), "CUDA")

#: As SOURCE, with a hook in the middle.
HOOKED = SOURCE.replace("c = torch.mm(b, w)", "c = torch.mm(torch.ops.stowage_test.first(b), w)")


@contextmanager
def hooked(name: str, hook: Callable[[torch.Tensor], Any]):
    """Inside, `torch.ops.stowage_test.NAME` calls `hook` with its input before it makes its result."""
    _hooks[name] = hook
    try:
        yield
    finally:
        del _hooks[name]


def make_inputs(rows: int = ROWS, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, rows, device=device), torch.zeros(rows, rows, device=device)


class Step:
    """The step as a function of its own, with its inputs."""

    def __init__(self, source: str = SOURCE, rows: int = ROWS, device: str = "cuda") -> None:
        self.function = compile(source)
        self.inputs = make_inputs(rows, device)
        self.region: dict = {}

    def __call__(self) -> torch.Tensor:
        with torch.no_grad():
            return self.function(*self.inputs)

    def run(self, count: int) -> None:
        for _ in range(count):
            self()

    def until_planned(self, runs: int = 3) -> Step:
        """Runs until the plan has been followed `runs` times. TorchScript profiles in the first call and stowage in two
        more."""
        self.run(3)
        self.region = newest_region()
        self.run(runs)
        assert self.phase()["state"] == "planned", self.phase()
        assert self.runs() == runs
        assert self.last()["hits"]["allocations"] > 0
        return self

    def phases(self) -> list[dict]:
        (found,) = [region for region in stowage.status()["regions"]
                    if region["alive"] and region["name"] == self.region["name"]]
        return found["phases"]

    def phase(self) -> dict:
        return self.phases()[0]

    def runs(self) -> int:
        """Planned ones, of whatever signature."""
        return sum(phase.get("runs", 0) for phase in self.phases())

    def last(self) -> dict:
        return self.phase()["last"]

    def is_planned(self) -> bool:
        """Whether one more run follows the plan."""
        before = self.runs()
        self()
        return self.runs() == before + 1


def notes(since: int = 0) -> list[str]:
    return stowage.status()["notes"][since:]
