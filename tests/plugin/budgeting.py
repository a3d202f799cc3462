# SPDX-License-Identifier: Apache-2.0
"""Captured steps to be kept within a budget, and what tells that they are."""

from __future__ import annotations

import re
from typing import Callable

import stowage
import torch
from planning import newest_region
from torch import nn
from twins import digest

#: Steps until a plan is followed: two runs of the program, five to time it, and two of each of three proposals, at most.
WARM_UP = 13
PLANNED = 4


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norms[1](self.second(self.relu(self.norms[0](self.first(x)))))
        y += x
        return self.relu(y)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 64, dropout=0.1, activation="gelu", batch_first=True)
        self.embed = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), Block(6), Block(6),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10))


def images() -> tuple:
    return torch.randn(4, 3, 16, 16), torch.randint(10, (4,))


def tokens() -> tuple:
    return torch.randint(50, (4, 24)), torch.randint(50, (96,))


MODELS = {"conv_net": (conv_net, images), "encoder": (Encoder, tokens)}
OPTIMIZERS = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
}


class Training:
    """A captured step, and everything that it leaves behind after each call."""

    def __init__(self, make_model: Callable = conv_net, make_batch: Callable = images, optimizer: str = "momentum",
                 loss_fn: Callable = nn.functional.cross_entropy) -> None:
        torch.manual_seed(0)
        self.model = make_model()
        self.optimizer = OPTIMIZERS[optimizer](self.model)
        self.batch = make_batch()
        self.step = stowage.capture(self.model, loss_fn, self.optimizer, *self.batch, strict=True)
        self.calls = 0

    def state(self) -> list:
        return [digest(self.model.state_dict()), digest(self.optimizer.state_dict())]

    def run(self, calls: int) -> list:
        seen = []
        for _ in range(calls):
            self.calls += 1
            torch.manual_seed(self.calls)
            seen.append([digest(self.step(*self.batch)), *self.state(), digest(torch.get_rng_state())])
        return seen


def phase() -> dict:
    found = newest_region()["phases"][0]
    assert found["state"] == "planned", found
    return found


def budget_of(found: dict) -> dict:
    """Of a phase whose plan is followed: it takes exactly what it says."""
    budget = found["budget"]
    assert found["runs"] >= PLANNED, found
    # The arena, what lies outside, and the loss: the largest live sum is less by what slots are rounded up to.
    assert found["last_peak_bytes"] == budget["needed_bytes"] >= found["peak_bytes"], found
    assert found["last"]["late_frees"] == 0, found
    return budget


def run_again() -> list[str]:
    """The kinds of the ops that run again in the newest plan."""
    plan = stowage.planned_graph().split(": the plan", 1)[1]
    return re.findall(r"^ +%\S+\.run\d+ .*? = (\w+::\w+)", plan, re.MULTILINE)


def lowest(training: Training) -> int:
    """The least budget that was found for the newest step, in bytes."""
    stowage.set_option("budget", "1")
    training.run(WARM_UP + PLANNED)
    return budget_of(phase())["needed_bytes"]
