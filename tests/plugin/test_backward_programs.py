# SPDX-License-Identifier: Apache-2.0
"""Scripted modules of every shape train planned as unplanned."""

from typing import List

import pytest
import stowage
import torch
from torch import nn
from twins import digest

STEPS = 10


class Inner(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(torch.tanh(self.linear(x)) * torch.sigmoid(x) + x)


def branches():
    class Net(nn.Module):  # here, so that TorchScript compiles it anew
        def __init__(self):
            super().__init__()
            self.inner = Inner(16)

        def forward(self, x):
            y = self.inner(x)
            if bool(y.sum() > 0):
                y = (y.exp() * y.sigmoid()).tanh() * y
            else:
                y = (y.sin() + y.cos() * y).tanh()
            return y * y.sigmoid()

    return Net()


def loops():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner(16)

        def forward(self, x):
            kept: List[torch.Tensor] = []
            for step in range(int(x.size(0)) // 3):
                x = self.inner(x).sigmoid() * x.tanh() + step
                if step % 2 == 0:
                    kept.append(x.exp().tanh() * x)
            return torch.cat(kept).sin()

    return Net()


def several_regions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 1, 3, padding=1)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            image = (x.sigmoid() * x.tanh()).exp().view(1, 1, x.size(0), x.size(1))
            image = torch.relu(self.norm(self.first(image)).sigmoid() * 2).tanh()
            return (self.last(image).sin() * image.sum(1, keepdim=True).cos()).sigmoid()

    return Net()


def called_twice():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.conv = Inner(16), nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x):
            y = self.inner(self.inner(x).exp().tanh())
            y = self.conv(y.unsqueeze(1)).squeeze(1)
            return self.inner(y).sin() + self.inner(x).cos()

    return Net()


def nested():
    class Middle(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Inner(16) for _ in range(3)])
            self.drop = nn.Dropout(0.3)

        def forward(self, x):
            for part in self.parts:
                x = self.drop(part(x)) + x
            return x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = Middle(), nn.Sequential(Middle(), nn.Softplus())

        def forward(self, x):
            return self.last(self.first(x).sigmoid())

    return Net()


def new_phases(before: set) -> list:
    regions = [region for region in stowage.status()["regions"] if region["name"] not in before]
    return [phase for region in regions for phase in region["phases"] if phase.get("runs", 0) >= 3]


def names() -> set:
    return {region["name"] for region in stowage.status()["regions"]}


def train(make) -> tuple:
    torch.manual_seed(0)
    net = torch.jit.script(make())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    seen = []
    for step in range(STEPS):
        torch.manual_seed(step)
        x = torch.randn(12, 16, requires_grad=True)
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(digest([loss, x.grad, net.state_dict()]))
        net.eval()
        with torch.no_grad():
            seen.append(digest(net(x)))
        net.train()
    return seen, net


@pytest.mark.parametrize("make", [branches, loops, several_regions, called_twice, nested])
def test_module_trains_and_evaluates_as_without_a_plan(make):
    stowage.set_option("min_ops", "2")
    expected = train(make)[0]
    stowage.enable()
    before = names()
    seen, net = train(make)
    assert seen == expected
    followed = new_phases(before)
    assert len(followed) >= 2  # of forward and backward
    assert any(phase["last_emptied_bytes"] > 0 for phase in followed)


def test_plans_of_evaluation_take_an_arena_and_those_of_training_none():
    stowage.set_option("scripted_steps", "0")
    stowage.enable()
    before = names()
    _, net = train(nested)
    assert {phase["last"]["hits"]["bytes"] > 0 for phase in new_phases(before)} == {True, False}
