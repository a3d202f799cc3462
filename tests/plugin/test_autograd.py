# SPDX-License-Identifier: Apache-2.0
"""What autograd records must not move: its backward sums gradients in an order that follows the forward's."""

import pytest
import stowage
import torch
from planning import compile, digest, newest_region, run
from torch import nn


def vector() -> torch.Tensor:
    return torch.randn(1000)


def script_net() -> torch.jit.ScriptModule:
    class Net(nn.Module):  # here, so that TorchScript compiles it anew
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(20, 40), nn.Linear(40, 10)

        def forward(self, x):
            hidden = torch.tanh(self.first(x))
            hidden = torch.sigmoid(hidden * hidden) + hidden.relu() * 0.5 + hidden.exp() * hidden
            return self.last(torch.cat([hidden.sin(), hidden], 1)[:, :40] * hidden)

    torch.manual_seed(0)
    return torch.jit.script(Net())


def gradients(net: torch.jit.ScriptModule) -> list:
    return digest([parameter.grad for parameter in net.parameters()])


def train_plainly(net, x) -> list:
    net(x).pow(2).sum().backward()
    return gradients(net)


def train_with_retained_graph(net, x) -> list:
    loss = net(x).pow(2).sum()
    loss.backward(retain_graph=True)
    first = gradients(net)
    loss.backward()
    return first + gradients(net)


def train_through_gradients(net, x) -> list:
    x.requires_grad_()
    (slope,) = torch.autograd.grad(net(x).pow(2).sum(), x, create_graph=True)
    penalty = slope.pow(2).sum()
    penalty.backward()
    return gradients(net) + digest([penalty, x.grad])


def train_two_at_a_time(net, x) -> list:
    losses = [net(x).sum(), net(x * 2).pow(2).sum()]
    for loss in losses:
        loss.backward()
    return gradients(net)


def train_and_evaluate(net, x) -> list:
    loss = net(x).pow(2).sum()
    with torch.no_grad():
        quiet = net(x)
    loss.backward()
    return gradients(net) + digest([quiet])


@pytest.mark.parametrize(
    "train",
    [train_plainly, train_with_retained_graph, train_through_gradients, train_two_at_a_time, train_and_evaluate],
)
def test_scripted_module(train):
    def steps() -> list:
        net = script_net()
        seen = []
        for step in range(10):
            net.zero_grad()
            torch.manual_seed(step)
            seen.append(train(net, torch.randn(6, 20)))
        return [seen, net]

    unplanned = steps()
    stowage.enable()
    planned = steps()
    assert planned[0] == unplanned[0]
    alive = [region for region in stowage.status()["regions"] if region["alive"]]
    assert any(phase["state"] == "planned" and phase["runs"] >= 3 for region in alive for phase in region["phases"])


def test_grad_mode_set_inside_the_graph():
    """First nothing requires a gradient, and the graph is planned; then something does, and autograd records."""
    source = """
def step(x):
    s = torch.cat([x, x]).exp()
    torch.set_grad_enabled(True)
    b = x.exp()
    huge = torch.cat([x] * 16).tanh() + s.sum()
    r = (x * s[:1000]).sum()
    return (b * b.sin()).sum() + (huge[:1000] * 1.1).sum() + (x * 3).cos().sum() + r
"""

    def calls(function) -> list:
        seen = run(function, lambda: (vector(),))
        for call in range(4):
            torch.manual_seed(call)
            x = vector().requires_grad_()
            with torch.no_grad():
                result = function(x)
            result.backward()
            seen.append(digest([result, x.grad]))
        return seen

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    region = newest_region()
    assert [phase["state"] for phase in region["phases"]] == ["planned"]
    assert region["runs_as_is"] >= 4


def test_graph_that_makes_a_tensor_require_gradients_is_left_alone():
    source = """
def step(x):
    a = x.detach()
    a = a.requires_grad_(True)
    b = a.exp()
    c = torch.cat([a, b]).sin()
    return c.sum() + b.sum()
"""
    expected = run(compile(source), lambda: (vector(),))
    stowage.enable()
    function = compile(source)
    assert run(function, lambda: (vector(),)) == expected
    assert stowage.status()["left_alone"][-1]["why"] == "it contains aten::requires_grad_, after which autograd records"


def test_no_grad_inside_the_graph():
    source = """
def step(x):
    b = x.exp()
    with torch.no_grad():
        c = torch.cat([b, b]).sin().sum()
        d = b * c
    e = torch.cat([d, b]).cos()
    return e.sum(), d
"""
    expected = run(compile(source), lambda: (vector(),))
    stowage.enable()
    function = compile(source)
    assert run(function, lambda: (vector(),)) == expected


def test_inference_mode_and_no_grad_take_turns():
    source = """
def step(x):
    a = torch.cat([x, x]).exp()
    b = a.sin() + a
    b.mul_(2)
    c = torch.cat([b, a]).cos()
    return c.sum(), b[:10]
"""

    def calls(function) -> list:
        seen = []
        for call in range(16):
            torch.manual_seed(call)
            with torch.inference_mode() if call % 2 else torch.no_grad():
                result = function(vector())
            assert result[0].is_inference() == bool(call % 2)
            seen.append(digest(result))
        return seen

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    assert [phase["state"] for phase in newest_region()["phases"]] == ["planned", "planned"]  # each mode has its own
