# SPDX-License-Identifier: Apache-2.0
"""The program of a step: the traced forward and backward, then the weight updates, as one TorchScript function."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from . import origins, torchscript
from .optimizers import Adam, Sgd
from .tracing import Trace

aten = torch.ops.aten


@dataclass
class Program:
    """A captured step for one structure.

    The values of a step are its batch, parameters, buffers, the trace's constants, a gradient for each parameter (or
    None), the optimizer state of each update and the scalars of each bucket, in this order; `takes` says which of them
    the function takes.
    """

    function: torch.jit.ScriptFunction
    takes: list[int]
    constants: list[Any]
    grad_mode: bool  # no value requires a gradient, but oneDNN's LSTM keeps what its backward needs in this mode only
    profiled: bool  # by TorchScript, at the first call; on CUDA it would fuse ops then
    cublas: torch.device | None  # where it multiplies matrices
    compiled: bool = False

    def run(self, values: list[Any]) -> torch.Tensor:
        """Runs the step on its values, and returns the loss."""
        if self.cublas is not None and not self.compiled:
            _make_cublas_workspace(self.cublas)
        as_is = self.compiled or self.profiled
        with torch.set_grad_enabled(self.grad_mode), nullcontext() if as_is else torchscript.unprofiled():
            loss = self.function(*[values[index] for index in self.takes])
        self.compiled = True
        return loss


@dataclass
class Update:
    """The update of one parameter."""

    slot: int  # of the parameter
    group: dict[str, Any]
    bucket: int  # position in the list of scalar sets


def compile_step(
    trace: Trace,
    tensors: list[torch.Tensor],
    rule: Sgd | Adam,
    updates: list[Update],
    scalars: list[dict[str, float]],
    label: str,
) -> Program:
    """Appends `updates` of the parameters `tensors` to a copy of `trace`, and makes it a TorchScript function.

    The updates come after the whole backward, in eager's order: moving them is the planner's work.
    """
    graph = torch.fx.Graph()
    copy: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(trace.graph, copy)
    params = [copy[node] for node in trace.params]
    names = [node.name.removeprefix("p_") for node in trace.params]
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        held = [
            None if param.grad is None else graph.placeholder(f"g_{name}") for name, param in zip(names, tensors)
        ]
        states = [
            {name: graph.placeholder(f"s_{name}_{names[update.slot]}") for name in rule.tensors(update.group)}
            for update in updates
        ]
        numbers = [
            {name: graph.placeholder(f"{name}_{bucket}", type_expr=float) for name in group}
            for bucket, group in enumerate(scalars)
        ]
    for buffer, value in trace.reassigned:
        graph.call_function(aten.copy_.default, (copy[buffer], copy[value]))
    grads = [copy.get(node) for node in trace.grads]
    for slot, total in enumerate(held):
        if total is not None and grads[slot] is not None:
            graph.call_function(aten.add_.Tensor, (total, grads[slot]))
        grads[slot] = grads[slot] if total is None else total
    for update, state in zip(updates, states):
        owner = trace.owners[update.slot]
        origin = origins.Origin(f"optimizer.{owner}" if owner else "optimizer")
        call = partial(_call_for, graph, names[update.slot], origin)
        rule.append(call, update.group, params[update.slot], grads[update.slot], state, numbers[update.bucket])
    copy[trace.loss]._rename("loss")
    graph.output(copy[trace.loss])
    graph.eliminate_dead_code(_must_stay)
    origins.inherit(graph)

    values = [copy[node] for node in (*trace.batch, *trace.params, *trace.buffers)]
    values += [copy[node] for node, _ in trace.constants] + held
    values += [node for state in states for node in state.values()]
    values += [node for group in numbers for node in group.values()]
    position = {node: index for index, node in enumerate(values) if node is not None}
    takes = []
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        if node.users:
            takes.append(position[node])
        else:
            graph.erase_node(node)
    return Program(
        function=torchscript.to_function(graph, label),
        takes=takes,
        constants=[value for _, value in trace.constants],
        grad_mode=any(node.target is aten.mkldnn_rnn_layer.default for node in graph.nodes),
        profiled=tensors[0].device.type == "cpu",
        cublas=tensors[0].device if tensors[0].is_cuda and _multiplies_matrices(graph) else None,
    )


def _call_for(
    graph: torch.fx.Graph, name: str, origin: origins.Origin, op: Any, args: tuple, kwargs: dict | None = None
) -> torch.fx.Node:
    """Appends a call of `op` that is named after the parameter it helps to update."""
    node = graph.create_node("call_function", op, args, kwargs, name=f"{op.overloadpacket.__name__}_{name}")
    origins.put(node, origin)
    return node


def _must_stay(node: torch.fx.Node) -> bool:
    """Whether an op whose result is unused does something all the same: writes, or draws random numbers."""
    return node.is_impure() or node.target in _SILENT_WRITERS


def _make_cublas_workspace(device: torch.device) -> None:
    """cuBLAS keeps its workspace for good from its first use on. Made before the first step it lies beside the weights,
    not amid what that step leaves behind, where it would keep memory from the arena."""
    torch.mm(torch.zeros(1, 1, device=device), torch.zeros(1, 1, device=device))


def _multiplies_matrices(graph: torch.fx.Graph) -> bool:
    ops = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
    return any(node.target in ops for node in graph.nodes)


#: Ops that update running statistics though their schema does not say so.
_SILENT_WRITERS = {aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default}
