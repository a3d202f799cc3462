# SPDX-License-Identifier: Apache-2.0
"""The two ways in which a loop is planned: its modules are scripted, or each of its turns is a `stowage.step()`."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from typing import Any, Callable

import stowage
import torch
from torch import nn
from torch.nn.functional import dropout, relu
from twins import digest

#: Turns of a loop: in some of the first ones TorchScript profiles, and stowage.
TURNS = 14


@dataclass(frozen=True)
class Mode:
    name: str
    is_scripted: bool

    def make(self, module: nn.Module) -> nn.Module:
        return torch.jit.script(module) if self.is_scripted else module

    def step(self) -> Any:
        """What a turn of the loop runs within."""
        return contextlib.nullcontext() if self.is_scripted else stowage.step(device="cpu")


MODES = (Mode("scripted", True), Mode("eager-step", False))


def hits() -> int:
    """Allocations that came from plans, of regions alive and of steps."""
    status = stowage.status()
    holders = [region for region in status["regions"] if region["alive"]] + status["steps"]
    return sum(phase["total"]["hits"]["allocations"] for holder in holders for phase in holder["phases"]
               if phase["state"] == "planned")


class Seen(list):
    """What a training shows, as bytes. What it holds stays alive with it, its regions too."""

    def __init__(self, *held: Any) -> None:
        super().__init__()
        self.held = held

    def add(self, *values: Any) -> None:
        self.append(digest(list(values)))


def assert_same(mode: Mode, train: Callable[[Mode], Seen], min_hits: int = 150, store: Any = "") -> None:
    """`train(mode)` shows the same planned as unplanned, at least eight things, and was planned."""
    stowage.disable()
    unplanned = train(mode)
    assert len(unplanned) >= 8
    del unplanned.held
    gc.collect()
    stowage.enable(store)
    before = hits()  # of regions that a test before left alive
    planned = train(mode)
    differing = [turn for turn, (seen, expected) in enumerate(zip(planned, unplanned)) if seen != expected]
    assert differing == []
    assert len(planned) == len(unplanned)
    assert hits() - before >= min_hits


def net(mode: Mode) -> nn.Module:
    """A perceptron of a type of its own: TorchScript keeps what it learnt of a type, and its later runs differ in last
    bits."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Linear(64, 10)

        def forward(self, x):
            hidden = self.first(x).tanh()
            hidden = (hidden * hidden).sigmoid() + relu(hidden) * 0.5
            hidden = dropout(self.norm(hidden), 0.2, self.training)
            return self.last(hidden.exp() * hidden)

    return mode.make(Net())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch(turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + turn)
    return torch.randn(16, 20), torch.randint(10, (16,))


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list:
    return [model.state_dict(), optimizer.state_dict(), [parameter.grad for parameter in model.parameters()],
            torch.get_rng_state()]
