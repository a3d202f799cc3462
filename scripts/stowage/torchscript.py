# SPDX-License-Identifier: Apache-2.0
"""Turns an FX graph of aten ops into a TorchScript function.

The TorchScript graph is built node by node instead of being compiled from Python text: every op keeps exactly the
overload that was traced, values keep the names of the FX nodes, and the printed graph is the same in every process.
"""

from __future__ import annotations

import operator
import threading
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from . import origins

_MEMORY_FORMATS = {  # c10/core/MemoryFormat.h
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


_TYPES = {float: torch._C.FloatType, int: torch._C.IntType}


class Unscriptable(Exception):
    """An op has no TorchScript form; the text names it."""


def to_function(graph: torch.fx.Graph, label: str = "") -> torch.jit.ScriptFunction:
    """Compiles `graph`: placeholders are tensors, or numbers where their type says so; the output is one value.

    With a `label`, the graph tells the plugin, which must be loaded, to call it so, and where its ops come from.
    """
    builder = _Builder(graph)
    ir = builder.ir
    if label:
        mark = ir.create("stowage::name", 0)
        mark.s_("name", label)
        mark.t_("origins", origins.to_bytes(builder.named()))
        ir.prependNode(mark)
    return torch._C._create_function_from_graph("step", ir)


_first_calls_lock = threading.Lock()
_first_calls = 0  # that run right now
_users_profiled_runs = 0


@contextmanager
def unprofiled() -> Iterator[None]:
    """For the first call of a function: TorchScript compiles it there and then, without having profiled it.

    From the types that a profiled run shows it would fuse pointwise ops on CUDA, which rounds in another way than
    eager, and it would find no schema for an op that is given an undefined tensor (2.11). The setting belongs to the
    process, and TorchScript reads it at the first call of each function alone.
    """
    global _first_calls, _users_profiled_runs
    with _first_calls_lock:
        if _first_calls == 0:
            _users_profiled_runs = torch._C._jit_set_num_profiled_runs(0)
        _first_calls += 1
    try:
        yield
    finally:
        with _first_calls_lock:
            _first_calls -= 1
            if _first_calls == 0:
                torch._C._jit_set_num_profiled_runs(_users_profiled_runs)


class _Builder:
    def __init__(self, graph: torch.fx.Graph) -> None:
        self.ir = torch._C.Graph()
        self.values: dict[torch.fx.Node, Any] = {}  # a Value, or the list of an op's several outputs
        for node in graph.nodes:
            if node.op == "placeholder":
                value = self.ir.addInput(node.name)
                value.setType(_TYPES.get(node.type, torch._C.TensorType).get())
                self.values[node] = value
            elif node.op == "output":
                value = self.values[node.args[0]]
                value.setDebugName(node.args[0].name)
                self.ir.registerOutput(value)
            elif node.target is operator.getitem:
                self.values[node] = self.values[node.args[0]][node.args[1]]
            elif isinstance(node.target, torch._ops.OpOverload):
                self.values[node] = self.call(node)
            else:
                raise Unscriptable(getattr(node.target, "__name__", str(node.target)))
        torch._C._jit_pass_constant_pooling(self.ir)
        self.ir.lint()

    def named(self) -> list[tuple[str, torch.fx.Node]]:
        """The nodes that are ops, each with the name of its first value; one without values has none."""
        ops = [(node, values) for node, values in self.values.items() if isinstance(node.target, torch._ops.OpOverload)]
        first = [(node, values[0] if isinstance(values, list) else values) for node, values in ops if values != []]
        return [(value.debugName(), node) for node, value in first]

    def call(self, node: torch.fx.Node) -> Any:
        schema = node.target._schema
        inputs = []
        for index, argument in enumerate(schema.arguments):
            if index < len(node.args):
                given = node.args[index]
            else:
                given = node.kwargs.get(argument.name, argument.default_value)
            inputs.append(self.value(given, argument.type))
        op = self.ir.create(schema.name, inputs, len(schema.returns))
        self.ir.appendNode(op)
        outputs = list(op.outputs())
        for value, returned in zip(outputs, schema.returns):
            value.setType(returned.type)
        if op.schema() == "(no schema)":
            raise Unscriptable(str(node.target))
        if len(outputs) == 1 and schema.returns[0].type.kind() == "ListType":
            unpack = self.ir.create("prim::ListUnpack", outputs, len(node.meta["val"]))
            self.ir.appendNode(unpack)
            outputs = list(unpack.outputs())
        elif len(outputs) == 1:
            outputs[0].setDebugName(node.name)
            return outputs[0]
        for index, value in enumerate(outputs):
            value.setDebugName(f"{node.name}.{index}")
        return outputs

    def value(self, given: Any, kind: torch._C.Type) -> torch._C.Value:
        """The graph value of an argument `given` where the schema wants `kind`."""
        if isinstance(given, torch.fx.Node):
            return self.values[given]
        if given is None and kind.kind() == "TensorType":  # autograd passes undefined tensors where a schema has no '?'
            undefined = self.ir.create("prim::AutogradZero", 1)
            self.ir.appendNode(undefined)
            return undefined.output()
        if given is None:
            return self.ir.insertConstant(None)
        if kind.kind() == "OptionalType":
            kind = kind.getElementType()
        if isinstance(given, (list, tuple)):
            element = kind.getElementType()
            made = self.ir.create("prim::ListConstruct", [self.value(item, element) for item in given], 1)
            self.ir.appendNode(made)
            made.output().setType(kind)
            return made.output()
        if isinstance(given, torch.memory_format):
            given = _MEMORY_FORMATS[given]
        elif kind.kind() == "FloatType":
            given = float(given)
        constant = self.ir.insertConstant(given)
        if isinstance(given, bool) and kind.kind() == "NumberType":
            constant.setType(kind)  # a bool is a Scalar to an op, but its type is not to the schema matcher
        return constant
