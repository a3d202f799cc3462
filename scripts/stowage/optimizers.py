# SPDX-License-Identifier: Apache-2.0
"""The weight updates of torch.optim, written as graph ops.

An optimizer is not traced: its numbers change between steps (learning rate, step count), and a trace would either bake
them in or take the capturable branch, which computes bias corrections in float32. Instead each rule below appends the
ops of eager's single-tensor update (torch/optim/sgd.py and adam.py, 2.11) to the graph, in eager's order, and computes
eager's scalars on the host in double, so that the update is bit-identical.

Parameters of one group that share a *bucket* share their scalars: a bucket is what these depend on besides the group.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.fx import Node

Call = Callable[..., Node]
Nodes = dict[str, Node]

aten = torch.ops.aten

#: Options of a parameter group that select another implementation than the single-tensor one.
_OTHER_IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")


class Sgd:
    """torch.optim.SGD with momentum, dampening, Nesterov momentum, weight decay and maximize."""

    def branches(self, group: dict[str, Any]) -> tuple:
        """What of `group` decides which ops the update consists of."""
        return (group["maximize"], group["weight_decay"] != 0, group["momentum"] != 0, group["nesterov"])

    def bucket(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Whether the momentum buffer exists already."""
        return group["momentum"] != 0 and state.get("momentum_buffer") is not None

    def new_state(self, param: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The state that eager would create at this step, by name.

        Eager makes the first momentum buffer a copy of the gradient. A buffer of negative zeros gives the same bits in
        the ordinary update with gain 1: -0.0 * momentum + 1.0 * gradient is the gradient, signed zeros included.
        """
        if group["momentum"] == 0 or state.get("momentum_buffer") is not None:
            return {}
        return {"momentum_buffer": torch.full_like(param, -0.0, memory_format=torch.preserve_format)}

    def tensors(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state tensors that the update reads and writes."""
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def scalars(self, group: dict[str, Any], bucket: Any) -> dict[str, float]:
        """This step's numbers, by name, for the parameters of `group` in `bucket`."""
        numbers = {"minus_lr": -group["lr"]}
        if group["weight_decay"] != 0:
            numbers["weight_decay"] = group["weight_decay"]
        if group["momentum"] != 0:
            numbers["momentum"] = group["momentum"]
            numbers["gain"] = 1 - group["dampening"] if bucket else 1.0
        return numbers

    def append(self, call: Call, group: dict[str, Any], param: Node, grad: Node, state: Nodes, number: Nodes) -> None:
        """Appends the update of `param` by `grad` with `call(op, args, kwargs)`."""
        if group["maximize"]:
            grad = call(aten.neg.default, (grad,))
        if group["weight_decay"] != 0:
            grad = call(aten.add.Tensor, (grad, param), {"alpha": number["weight_decay"]})
        if group["momentum"] != 0:
            buffer = state["momentum_buffer"]
            call(aten.mul_.Scalar, (buffer, number["momentum"]))
            call(aten.add_.Tensor, (buffer, grad), {"alpha": number["gain"]})
            grad = call(aten.add.Tensor, (grad, buffer), {"alpha": number["momentum"]}) if group["nesterov"] else buffer
        call(aten.add_.Tensor, (param, grad), {"alpha": number["minus_lr"]})

    def advance(self, states: list[dict[str, Any]]) -> None:
        """Counts the step in the state of each updated parameter."""


class Adam:
    """torch.optim.Adam and AdamW with amsgrad, weight decay (plain or decoupled) and maximize."""

    def branches(self, group: dict[str, Any]) -> tuple:
        return (group["maximize"], group["weight_decay"] != 0, group["decoupled_weight_decay"], group["amsgrad"])

    def bucket(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """The number of steps done: the bias corrections depend on it."""
        return state["step"].item() if state else 0.0

    def new_state(self, param: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, torch.Tensor]:
        if state:
            return {}
        wide = torch.get_default_dtype() == torch.float64
        fresh = {"step": torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32)}
        for name in self.tensors(group):
            fresh[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return fresh

    def tensors(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def scalars(self, group: dict[str, Any], bucket: Any) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        step = bucket + 1
        numbers = {
            "minus_step_size": -(group["lr"] / (1 - beta1**step)),
            "beta1_rest": 1 - beta1,
            "beta2": beta2,
            "beta2_rest": 1 - beta2,
            "bias2_sqrt": (1 - beta2**step) ** 0.5,
            "eps": group["eps"],
        }
        if group["weight_decay"] != 0:
            decoupled = group["decoupled_weight_decay"]
            numbers["decay"] = 1 - group["lr"] * group["weight_decay"] if decoupled else group["weight_decay"]
        return numbers

    def append(self, call: Call, group: dict[str, Any], param: Node, grad: Node, state: Nodes, number: Nodes) -> None:
        if group["maximize"]:
            grad = call(aten.neg.default, (grad,))
        if group["weight_decay"] != 0:
            if group["decoupled_weight_decay"]:
                call(aten.mul_.Scalar, (param, number["decay"]))
            else:
                grad = call(aten.add.Tensor, (grad, param), {"alpha": number["decay"]})
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        call(aten.lerp_.Scalar, (mean, grad, number["beta1_rest"]))
        call(aten.mul_.Scalar, (square, number["beta2"]))
        call(aten.addcmul_.default, (square, grad, grad), {"value": number["beta2_rest"]})
        if group["amsgrad"]:
            largest = state["max_exp_avg_sq"]
            call(aten.maximum.out, (largest, square), {"out": largest})
            square = largest
        root = call(aten.sqrt.default, (square,))
        root = call(aten.div.Scalar, (root, number["bias2_sqrt"]))
        call(aten.add_.Scalar, (root, number["eps"]))
        call(aten.addcdiv_.default, (param, mean, root), {"value": number["minus_step_size"]})

    def advance(self, states: list[dict[str, Any]]) -> None:
        if states:
            torch._foreach_add_([state["step"] for state in states], 1)


_RULES = {torch.optim.SGD: Sgd(), torch.optim.Adam: Adam(), torch.optim.AdamW: Adam()}


def rule_of(optimizer: torch.optim.Optimizer) -> Sgd | Adam | None:
    """The rule that mirrors `optimizer`, or None. A subclass may do anything, so only the exact classes count."""
    return _RULES.get(type(optimizer))


def refusal(optimizer: torch.optim.Optimizer) -> tuple[str, str] | None:
    """Why the update of `optimizer` cannot be part of a graph, and the fix; None if it can."""
    name = type(optimizer).__name__
    if rule_of(optimizer) is None:
        return f"optimizer '{name}' is not supported", "use torch.optim.SGD, Adam or AdamW"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"optimizer '{name}' has step hooks, which a graph does not call", "remove them"
    for group in optimizer.param_groups:
        for option in _OTHER_IMPLEMENTATIONS:
            if group.get(option):
                return f"option '{option}=True' of optimizer '{name}' is not supported", "leave it out"
        for option, value in group.items():
            if option != "params" and _holds_tensor(value):
                return f"option '{option}' of optimizer '{name}' is a tensor", "pass a float"
        for param in group["params"]:
            if param.is_complex():
                return f"optimizer '{name}' updates complex parameters", "use real parameters"
    return None


def options(optimizer: torch.optim.Optimizer) -> tuple:
    """What `refusal` depends on and a user may change between steps; cheap enough for every step."""
    hooks = bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
    groups = optimizer.param_groups
    return hooks, *[(_holds_tensor(group["lr"]), *map(group.get, _OTHER_IMPLEMENTATIONS)) for group in groups]


def _holds_tensor(value: Any) -> bool:
    return any(isinstance(item, torch.Tensor) for item in (value if isinstance(value, tuple) else (value,)))
