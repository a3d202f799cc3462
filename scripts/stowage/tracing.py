# SPDX-License-Identifier: Apache-2.0
"""Traces forward and backward of a model into one FX graph of aten ops, without running or changing anything."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten

_OWN_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
_PLAIN = (bool, int, float, str)
_SUMS = (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)


class CaptureError(RuntimeError):
    """A training step cannot become one graph: `cannot capture 'MODEL': CAUSE; FIX`."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(f"{cause}; {fix}")
        self.cause = cause
        self.fix = fix


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
    _refuse_hooks(modules, params)
    owned = {name for name, _ in whole.named_parameters()}
    reassigned: list[int] = []

    def step(*flat: torch.Tensor) -> list[torch.Tensor | None]:
        rest = iter(flat)
        given_inputs, given_targets = tree_unflatten([next(rest) for _ in batch], spec)
        leaves = {name: next(rest) for name in params}
        held = dict(zip(buffers, rest))
        given = {name: leaf for name, leaf in leaves.items() if name in owned} | held
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
    with torch.enable_grad(), _nothing_kept(modules):
        traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*flat)

    n_inputs = len(tree_flatten(inputs)[0])
    names = [f"input_{index}" for index in range(n_inputs)]
    names += [f"target_{index}" for index in range(len(batch) - n_inputs)]
    names += ["p_" + bare(name) for name in params] + ["b_" + bare(name) for name in buffers]
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
    )


def explain(error: Exception) -> CaptureError:
    """Says in one line why tracing or scripting ended in `error`, where in the user's code, and what to do."""
    if isinstance(error, CaptureError):
        return error
    where = _place(error)
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)):
        return CaptureError(f"its control flow depends on a tensor's value{where}", "use torch.where")
    return CaptureError(f"tracing it raised {type(error).__name__}: {text.rstrip('.')}{where}", "mend that")


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
        _as_accumulated(next(found), leaf, sources, name) if leaf.requires_grad else None for name, leaf in leaves.items()
    ]


def _as_accumulated(grad, param: torch.Tensor, sources: set[int], name: str):
    """`grad` as AccumulateGrad would leave it in `param.grad` (torch/csrc/autograd/functions/accumulate_grad.h, 2.11): in the
    parameter's own layout, since kernels may round differently in another one, and never an alias of a step's input."""
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


def _refuse_hooks(modules: list[torch.nn.Module], params: dict[str, torch.Tensor]) -> None:
    """A graph calls no hook, so a hook that eager would call must not be lost silently."""
    for module in modules:
        if isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            raise CaptureError(f"'{type(module).__name__}' talks to other devices from hooks", "capture the module in it")
        if has_hooks(module):
            raise CaptureError(f"module '{type(module).__name__}' has hooks, which a graph does not call", "remove them")
    for name, param in params.items():
        if param._backward_hooks or param._post_accumulate_grad_hooks:
            raise CaptureError(f"parameter '{bare(name)}' has hooks, which a graph does not call", "remove them")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether eager would call a hook when it runs `module` forward or backward."""
    state = module.__dict__
    return bool(
        state["_forward_hooks"] or state["_forward_pre_hooks"] or state["_backward_hooks"] or state["_backward_pre_hooks"]
    )


@contextmanager
def _nothing_kept(modules: list[torch.nn.Module]) -> Iterator[None]:
    """Puts back what a forward changed in Python, and refuses the model if it changed anything: the graph would not."""
    before = [{name: (value, _contents(value)) for name, value in module.__dict__.items()} for module in modules]
    numpy = sys.modules.get("numpy.random")
    python_state, numpy_state = random.getstate(), numpy.get_state() if numpy else None
    torch.clear_autocast_cache()
    try:
        yield
        changed = [(module, _first_change(module, old)) for module, old in zip(modules, before)]
        drew = random.getstate() != python_state or (numpy and _number(numpy.get_state()) != _number(numpy_state))
    finally:
        torch.clear_autocast_cache()  # it holds casts of fake weights
        random.setstate(python_state)
        if numpy:
            numpy.set_state(numpy_state)
        for module, old in zip(modules, before):
            _put_back(module, old)
    for module, name in changed:
        if name is not None:
            owner = type(module).__name__
            raise CaptureError(f"its forward changes attribute '{name}' of '{owner}'", "keep a tensor in a buffer")
    if drew:
        raise CaptureError("its forward draws random numbers outside torch", "draw them with torch")


def _number(numpy_state: tuple) -> tuple:
    return numpy_state[1].tobytes(), numpy_state[2:]


def _contents(value: Any) -> list | None:
    """What a plain container holds, to compare by identity."""
    if type(value) is dict:
        return [*value.keys(), *value.values()]
    return list(value) if type(value) in (list, set) else None


def _first_change(module: torch.nn.Module, before: dict[str, tuple[Any, list | None]]) -> str | None:
    now = module.__dict__
    for name in before.keys() | now.keys():
        if isinstance(module, torch.nn.RNNBase) and name in ("_flat_weights", "_flat_weight_refs"):
            continue  # a cache of its parameters, renewed whenever they are swapped
        if name not in now or name not in before:
            return name
        (old, held), new = before[name], now[name]
        if old is not new and not (type(old) is type(new) and type(new) in _PLAIN and old == new):
            return name
        if held is not None and [id(item) for item in held] != [id(item) for item in _contents(new)]:
            return name
    return None


def _put_back(module: torch.nn.Module, before: dict[str, tuple[Any, list | None]]) -> None:
    now = module.__dict__
    for name in now.keys() - before.keys():
        del now[name]
    for name, (value, held) in before.items():
        now[name] = value
        if held is not None and [id(item) for item in held] != [id(item) for item in _contents(value)]:
            value.clear()
            if type(value) is dict:
                value.update(zip(held[: len(held) // 2], held[len(held) // 2 :]))
            else:
                value.extend(held) if type(value) is list else value.update(held)


def _tidy(traced: torch.fx.GraphModule, names: list[str]) -> tuple[torch.fx.Graph, list, list, list]:
    """Copies the traced graph; returns the copy, its placeholders, its constants (node, value) and its outputs.

    Constants become placeholders too, placeholders get the `names` of what they stand for, silent aliases go, and batch
    norm is called by the overload that says which statistics it writes. Where a TorchScript pass would look for a literal
    number and then round in another way, the number is hidden in a placeholder.
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
        made[node] = graph.node_copy(node, made.__getitem__)
        if node.target is aten.native_batch_norm.default and node.args[3] is not None:
            made[node].target = aten._native_batch_norm_legit.default  # the same kernel
        elif node.target is aten.addmm.default and not {"beta", "alpha"} & node.kwargs.keys():
            made[node].kwargs = {"beta": one, "alpha": one}  # DecomposeOps would make it mm and add
        elif node.target in _SUMS and type(node.args[1]) is int and node.args[1] == 0:
            made[node].update_arg(1, zero)  # PeepholeOptimize would drop it, but -0.0 + 0 is 0.0
    return graph, placeholders, constants, [made.get(value) for value in nodes[-1].args[0]]


def _constant(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"it uses a constant of type '{type(value).__name__}'", "pass it as an input")
    if value.requires_grad:
        raise CaptureError("it uses a tensor that requires a gradient and is no parameter of the model", "register it")
    return value


def bare(name: str) -> str:
    """A name as the user knows it, without the wrapper's 'model.'."""
    return name.removeprefix("model.")


def _place(error: Exception) -> str:
    """' at FILE:LINE' of the innermost frame of the user's code, or nothing."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(_OWN_FOLDERS):
            place = f" at {Path(file).name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place
