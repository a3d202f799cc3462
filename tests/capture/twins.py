# SPDX-License-Identifier: Apache-2.0
"""Two copies of one training, a captured and an eager one, compared byte by byte after every step."""

from __future__ import annotations

import copy
from typing import Any, Callable

import stowage
import torch

cross_entropy = torch.nn.functional.cross_entropy


def digest(value: Any) -> Any:
    """`value` with each tensor replaced by its type, shape and raw bytes: signed zeros and NaNs count."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), data
    if isinstance(value, dict):
        return {key: digest(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [digest(item) for item in value]
    return value


class Twins:
    """Trains `make_model()` captured and eager (single-tensor), and asserts that nothing tells them apart."""

    def __init__(
        self, make_model: Callable, make_optimizer: Callable, x: Any, y: Any, loss_fn: Callable = cross_entropy
    ) -> None:
        torch.manual_seed(0)
        self.model = make_model()
        self.eager_model = copy.deepcopy(self.model)
        self.optimizer = make_optimizer(self.model)
        self.eager_optimizer = make_optimizer(self.eager_model)
        self.loss_fn = loss_fn
        self.seed = 0
        before = self.state(self.model, self.optimizer)
        self.step = stowage.capture(self.model, loss_fn, self.optimizer, x, y, strict=True)
        assert self.state(self.model, self.optimizer) == before, "capture left a trace"

    @property
    def sides(self) -> list[tuple]:
        """(model, optimizer) of both, for what a user changes between steps."""
        return [(self.model, self.optimizer), (self.eager_model, self.eager_optimizer)]

    def state(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        gradients = [param.grad for param in model.parameters()]
        buffers = dict(model.named_buffers())
        return digest([model.state_dict(), buffers, optimizer.state_dict(), gradients, torch.get_rng_state()])

    def train(self, x: Any, y: Any, steps: int = 1, zero: Callable = lambda optimizer: optimizer.zero_grad()) -> None:
        """Runs `steps` steps on both sides; `zero` is called before each."""
        for _ in range(steps):
            self.seed += 1
            torch.manual_seed(self.seed)
            zero(self.optimizer)
            loss = self.step(x, y)
            assert self.step.captured
            after = self.state(self.model, self.optimizer)

            torch.manual_seed(self.seed)
            zero(self.eager_optimizer)
            absent = [param for param in self.eager_model.parameters() if param.grad is None]
            inputs = x if isinstance(x, tuple) else (x,)
            eager_loss = self.loss_fn(self.eager_model(*inputs), y)
            eager_loss.backward()
            for group in self.eager_optimizer.param_groups:
                group["foreach"] = False
            self.eager_optimizer.step()
            for group in self.eager_optimizer.param_groups:
                group["foreach"] = None
            for param in absent:  # the one documented difference: new gradients do not stay
                param.grad = None
            assert digest(loss) == digest(eager_loss), f"loss of step {self.seed}"
            assert not loss.requires_grad
            assert after == self.state(self.eager_model, self.eager_optimizer), f"state after step {self.seed}"

    def train_with_schedule(self, x: Any, y: Any, steps: int = 10, zero: Callable | None = None) -> None:
        schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for _, optimizer in self.sides]
        for _ in range(steps):
            self.train(x, y, **({} if zero is None else {"zero": zero}))
            for schedule in schedules:
                schedule.step()
