# SPDX-License-Identifier: Apache-2.0
"""A scripted function whose backward frees early what its forward saved, trained planned and unplanned."""

import stowage
import torch
from twins import digest as digest_of

STEPS = 8
#: Its backward frees activations in the middle of the graph: sigmoid, tanh and exp save their results.
CHAIN = """
def step(x, w):
    a = (x * w).sin()
    b = a.sigmoid()
    c = b.tanh()
    d = c.exp()
    e = d.cos() * b
    return {returned}
"""


def script(returned: str = "e"):
    return torch.jit.CompilationUnit(CHAIN.format(returned=returned)).step


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(40, 50, requires_grad=True), torch.randn(50, requires_grad=True)


def digest(value) -> list:
    return [digest_of(value)]


def gradients(*tensors: torch.Tensor) -> list:
    return digest([tensor.grad for tensor in tensors])


def names() -> set[str]:
    return {region["name"] for region in stowage.status()["regions"]}


def emptied_bytes(before: set[str]) -> int:
    """By the newest run of each region that is planned, of those that are new; some was followed three times."""
    alive = [region for region in stowage.status()["regions"] if region["alive"] and region["name"] not in before]
    phases = [phase for region in alive for phase in region["phases"] if phase["state"] == "planned"]
    assert any(phase["runs"] >= 3 for phase in phases), alive
    return sum(phase["last_emptied_bytes"] for phase in phases)


def assert_same(train, make=script) -> int:
    """Trains planned as unplanned, byte for byte. Returns what the last backward freed early."""

    def steps() -> list:
        function = make()
        seen = []
        for step in range(STEPS):
            torch.manual_seed(step)
            seen.append(train(function))
        return [seen, function]

    unplanned = steps()
    stowage.enable()
    before = names()
    planned = steps()
    assert planned[0] == unplanned[0]
    return emptied_bytes(before)
