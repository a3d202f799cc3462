# SPDX-License-Identifier: Apache-2.0
"""Traces forward and backward of a model into one FX graph of aten ops, without running or changing anything."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from .effects import NoOutsideWrites, nothing_kept, refuse_hooks
from .errors import CaptureError, bare
from .origins import Origins

aten = torch.ops.aten

_SUMS = (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)


class Whole(torch.nn.Module):
    """A model and its loss as one module, so that the loss may own parameters too and may refer to the model."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable) -> None:
        super().__init__()
        self.model = model
        self.loss = loss_fn

    def forward(self, inputs: tuple, targets: Any) -> tuple[torch.Tensor, dict, dict]:
        """Returns the loss, and the parameters and buffers as the forward left them."""
        loss = self.loss(self.model(*inputs), targets)
        return loss, dict(self.named_parameters()), dict(self.named_buffers())


@dataclass
class Trace:
    """Forward and backward as a graph. Placeholders: batch, parameters, buffers, constants, in this order."""

    graph: torch.fx.Graph
    batch: list[torch.fx.Node]
    params: list[torch.fx.Node]
    buffers: list[torch.fx.Node]
    constants: list[tuple[torch.fx.Node, Any]]  # placeholder, and the tensor or number to pass for it
    loss: torch.fx.Node
    grads: list[torch.fx.Node | None]  # one a parameter; None where the loss does not depend on it
    reassigned: list[tuple[torch.fx.Node, torch.fx.Node]]  # buffer, and the value that the forward gave it
    modules: list[torch.nn.Module]  # kept alive, so that their ids stay theirs
    owners: list[str]  # the scope of the module that owns each parameter


def trace(
    whole: Whole,
    inputs: tuple,
    targets: Any,
    params: dict[str, torch.Tensor],
    buffers: dict[str, torch.Tensor],
) -> Trace:
    """Traces one forward and backward; `params` may hold more than `whole` has.

    Fake tensors stand in for all data: no random number is drawn, no buffer, gradient or attribute changes. Raises
    CaptureError where the graph would not do what eager does, and whatever the model raises.
    """
    batch, spec = tree_flatten((inputs, targets))
    modules = list(whole.modules())
    refuse_hooks(modules, params)
    owned = {name for name, _ in whole.named_parameters()}
    reassigned: list[int] = []
    origins = Origins(whole)

    def recorded_step(*flat: torch.Tensor) -> list[torch.Tensor | None]:
        with origins.recorded():
            return step(*flat)

    def step(*flat: torch.Tensor) -> list[torch.Tensor | None]:
        rest = iter(flat)
        given_inputs, given_targets = tree_unflatten([next(rest) for _ in batch], spec)
        leaves = {name: next(rest) for name in params}
        held = dict(zip(buffers, rest))
        given = {name: leaf for name, leaf in leaves.items() if name in owned} | held
        with NoOutsideWrites():
            loss, params_after, buffers_after = torch.func.functional_call(whole, given, (given_inputs, given_targets))
        for name, param in params_after.items():
            if param is not given.get(name):
                raise CaptureError(f"its forward replaces parameter '{bare(name)}'", "change it in place")
        grads = _gradients(loss, leaves, sources={tensor.untyped_storage()._cdata for tensor in flat})
        values = []
        for index, (name, buffer) in enumerate(held.items()):
            value = buffers_after[name]
            if value is not buffer:
                if (value.shape, value.dtype, value.device) != (buffer.shape, buffer.dtype, buffer.device):
                    raise CaptureError(f"its forward gives buffer '{bare(name)}' another shape or type", "keep them")
                reassigned.append(index)
                values.append(value.detach())
        return [loss.detach(), *grads, *values]

    leaves = [param.detach().requires_grad_(param.requires_grad) for param in params.values()]
    flat = [*(tensor.detach() for tensor in batch), *leaves, *(buffer.detach() for buffer in buffers.values())]
    with torch.enable_grad(), nothing_kept(modules):
        traced = make_fx(recorded_step, tracing_mode="fake", _allow_non_fake_inputs=True)(*flat)

    n_inputs = len(tree_flatten(inputs)[0])
    names = [f"input_{index}" for index in range(n_inputs)]
    names += [f"target_{index}" for index in range(len(batch) - n_inputs)]
    names += ["p_" + bare(name) for name in params] + ["b_" + bare(name) for name in buffers]
    _refuse_several_devices(traced.graph, params)
    graph, placeholders, constants, (loss, *outputs) = _tidy(traced, names)
    first_buffer = len(batch) + len(params)
    buffer_nodes = placeholders[first_buffer:]
    return Trace(
        graph=graph,
        batch=placeholders[: len(batch)],
        params=placeholders[len(batch) : first_buffer],
        buffers=buffer_nodes,
        constants=constants,
        loss=loss,
        grads=outputs[: len(params)],
        reassigned=[(buffer_nodes[index], value) for index, value in zip(reassigned, outputs[len(params) :])],
        modules=modules,
        owners=[origins.scope(name.rpartition(".")[0]) if name in owned else "" for name in params],
    )


def _refuse_several_devices(graph: torch.fx.Graph, params: dict[str, torch.Tensor]) -> None:
    """The CPU may hold a batch or numbers that the forward moves; parameters and computing belong on one device."""
    devices = {param.device for param in params.values()}
    for node in graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (list, tuple)) else (values,):
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                devices.add(value.device)
    if len(devices) > 1:
        names = " and ".join(sorted(f"'{device}'" for device in devices))
        raise CaptureError(f"it uses the devices {names}", "put it on one")


def _gradients(loss: Any, leaves: dict[str, torch.Tensor], sources: set[int]) -> list[torch.Tensor | None]:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise CaptureError("its loss is not a single number", "return a tensor with one element from the loss function")
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    if not loss.requires_grad or not wanted:
        raise CaptureError("its loss depends on no parameter that requires a gradient", "check requires_grad")
    device = loss.device.type
    backward_mode = torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
    with backward_mode:
        found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    return [
        _as_accumulated(next(found), leaf, sources, name) if leaf.requires_grad else None
        for name, leaf in leaves.items()
    ]


def _as_accumulated(grad, param: torch.Tensor, sources: set[int], name: str):
    """`grad` as AccumulateGrad would leave it in `param.grad` (torch/csrc/autograd/functions/accumulate_grad.h, 2.11):
    in the parameter's own layout, since kernels may round differently in another, and never an alias of an input."""
    if grad is None:
        return None
    if grad.layout != torch.strided:
        raise CaptureError(f"the gradient of '{bare(name)}' is sparse", "use dense gradients (sparse=False)")
    dense = aten.is_non_overlapping_and_dense(param)
    strides = param.stride() if dense else torch.empty(param.shape, device="meta").stride()
    obeys = all(n == 1 and have != 0 or have == want for n, have, want in zip(grad.shape, grad.stride(), strides))
    if obeys and grad.untyped_storage()._cdata not in sources:
        return grad.detach()
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad.detach())


def _tidy(traced: torch.fx.GraphModule, names: list[str]) -> tuple[torch.fx.Graph, list, list, list]:
    """Copies the traced graph; returns the copy, its placeholders, its constants (node, value) and its outputs.

    Constants become placeholders too, placeholders get the `names` of what they stand for, silent aliases go, and batch
    norm is called by the overload that says which statistics it writes. Where a TorchScript pass would look for a
    literal number and then round in another way, the number is hidden in a placeholder.
    """
    nodes = list(traced.graph.nodes)
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for node, name in zip((node for node in nodes if node.op == "placeholder"), names, strict=True):
        made[node] = graph.placeholder(name.replace(".", "_"))
    placeholders = list(made.values())
    constants = []
    for node in nodes:
        if node.op == "get_attr":
            made[node] = graph.placeholder(f"c_{len(constants)}")
            constants.append((made[node], _constant(getattr(traced, node.target))))
    one = graph.placeholder("one", type_expr=int)
    zero = graph.placeholder("zero", type_expr=int)
    constants += [(one, 1), (zero, 0)]
    # Where an op reshapes a tensor in place, an alias is more than another name.
    reshapes = any(torch.Tag.inplace_view in getattr(node.target, "tags", ()) for node in nodes)
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target in (aten.detach.default, aten.alias.default, aten.lift_fresh.default) and not reshapes:
            made[node] = made[node.args[0]]
            continue
        if _moves_literal(node):
            # On the device once: a copy from the host's memory makes every step wait.
            literal = getattr(traced, node.args[0].args[0].target)
            moved = graph.placeholder(f"c_{len(constants)}")
            constants.append((moved, node.target(_constant(literal), *node.args[1:], **node.kwargs)))
            made[node] = graph.call_function(aten.lift_fresh_copy.default, (moved,))
            made[node].meta = dict(node.meta)
            continue
        made[node] = graph.node_copy(node, made.__getitem__)
        if node.target is aten.native_batch_norm.default and node.args[3] is not None:
            made[node].target = aten._native_batch_norm_legit.default  # the same kernel
        elif node.target is aten.addmm.default and not {"beta", "alpha"} & node.kwargs.keys():
            made[node].kwargs = {"beta": one, "alpha": one}  # DecomposeOps would make it mm and add
        elif node.target in _SUMS and type(node.args[1]) is int and node.args[1] == 0:
            made[node].update_arg(1, zero)  # PeepholeOptimize would drop it, but -0.0 + 0 is 0.0
    return graph, placeholders, constants, [made.get(value) for value in nodes[-1].args[0]]


def _moves_literal(node: torch.fx.Node) -> bool:
    """Whether `node` does no more than move or convert what `torch.tensor(...)` says in the forward."""
    if node.target is not aten._to_copy.default:
        return False
    fresh = node.args[0]
    return fresh.target is aten.lift_fresh_copy.default and fresh.args[0].op == "get_attr" and len(fresh.users) == 1


def _constant(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"it uses a constant of type '{type(value).__name__}'", "pass it as an input")
    if value.requires_grad:
        raise CaptureError("it uses a tensor that requires a gradient and is no parameter of the model", "register it")
    return value
