# SPDX-License-Identifier: Apache-2.0
"""Trainings that can be repeated from the same start on the device, and compared bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import stowage
import torch
from measuring.models import Model, model_named
from torch.nn.functional import cross_entropy

from gpu.outcome import Failure

DEVICE = "cuda"
#: A step is profiled two to four times before it is planned.
STEPS = 8
MIN_PLANNED_RUNS = 3
#: Tokens are drawn from these words, which every vocabulary has.
WORDS = 1000

Tensors = dict[str, torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, foreach=False),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3, foreach=False),
}


def be_deterministic() -> None:
    """Before CUDA is used: kernels that give the same bits at each call. Fresh tensors are not filled, since nothing is
    reused where they are."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


@dataclass(frozen=True)
class Case:
    model: str
    batch: int
    optimizer: str

    def __str__(self) -> str:
        return f"{self.model} batch {self.batch} {self.optimizer}"


class Training:
    """A model, its optimizer and one batch; every `run` starts anew."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        model = model_named(case.model)
        with torch.device(DEVICE):
            self.network = model.make()
            self.inputs, self.targets = random_batch(model, case.batch)
        self.optimizer = OPTIMIZERS[case.optimizer](self.network.parameters())
        self._start = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}

    def capture(self) -> Step:
        return stowage.capture(self.network, cross_entropy, self.optimizer, self.inputs, self.targets, strict=True)

    def eager_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = cross_entropy(self.network(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Step, steps: int = STEPS) -> Tensors:
        """Losses of all steps, and parameters, buffers and optimizer state after the last."""
        self.network.load_state_dict(self._start)
        self.optimizer.state.clear()
        self.optimizer.zero_grad()
        seen: Tensors = {}
        for number in range(1, steps + 1):
            torch.manual_seed(number)
            seen[f"loss of step {number}"] = step(self.inputs, self.targets).clone()
        self.optimizer.zero_grad()
        seen |= {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        for name, param in self.network.named_parameters():
            for key, value in self.optimizer.state.get(param, {}).items():
                seen[f"{key} of {name}"] = value.clone()
        return seen


def random_batch(model: Model, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """On the device in force: pictures with classes, or tokens with the next tokens."""
    if len(model.sample) > 1:
        return torch.randn((size, *model.sample)), torch.randint(model.classes, (size,))
    tokens = torch.randint(WORDS, (size, *model.sample))
    return tokens, tokens.roll(-1, 1).flatten()


def difference(found: Tensors, expected: Tensors) -> str | None:
    """The first tensor that is not the same to the last bit, and how many of its elements; None if all are."""
    if found.keys() != expected.keys():
        return f"only one has {sorted(found.keys() ^ expected.keys())[0]}"
    for name, tensor in expected.items():
        count = differing(found[name], tensor)
        if count != 0:
            return f"{name}: {count} of {tensor.numel()} elements differ"
    return None


def differing(found: torch.Tensor, expected: torch.Tensor) -> int:
    """How many elements differ in a bit; all, if type or shape do."""
    if (found.dtype, found.shape, found.device) != (expected.dtype, expected.shape, expected.device):
        return max(expected.numel(), 1)
    bits = [tensor.contiguous().view(-1).view(torch.uint8).view(tensor.numel(), -1) for tensor in (found, expected)
            if tensor.numel() > 0]
    return int((bits[0] != bits[1]).any(1).sum()) if bits else 0


def planned_phase(min_runs: int = MIN_PLANNED_RUNS) -> dict:
    """The plan of the newest graph that lives, which at least `min_runs` runs have followed."""
    status = stowage.status()
    regions = [region for region in status["regions"] if region["alive"]]
    if not regions:
        why = "; ".join(f"{graph['name']}: {graph['why']}" for graph in status["left_alone"])
        raise Failure(f"nothing was planned: {why or 'no graph met stowage'}")
    phase = next(iter(regions[-1]["phases"]), None)
    if phase is None:
        raise Failure(f"nothing was planned: '{regions[-1]['name']}' ran as it is {regions[-1]['runs_as_is']} times")
    if phase["state"] != "planned":
        raise Failure(f"not planned: {phase.get('why', 'its allocations were not steady')}")
    if phase["runs"] < min_runs or phase["last"]["hits"]["allocations"] == 0:
        hits = phase["last"]["hits"]["allocations"]
        raise Failure(f"{phase['runs']} runs followed the plan, {hits} allocations of the last one")
    return phase
