# SPDX-License-Identifier: Apache-2.0
"""Where the ops of a traced step come from: the module that ran them, and the line of its forward."""

from __future__ import annotations

import json
import sys
import sysconfig
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Iterable, Iterator

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from .errors import NOT_THE_USERS, bare

_KEY = "stowage_origin"
_STDLIB = sysconfig.get_path("stdlib")
_MODULE_CALL = torch.nn.Module._call_impl.__code__
_ENGINE_CALL = torch.autograd.graph._engine_run_backward.__code__


@dataclass(frozen=True)
class Origin:
    """Of an op of the backward: the origin of the forward op whose gradient it helps to compute."""

    # Path of the module as the user knows it, or the class of the model itself; "loss"; "optimizer." and a path.
    scope: str
    file: str = ""  # without folders; empty where there is no line
    line: int = 0


class Origins:
    """Gives each node of a trace its origin, from the call stack and autograd's numbers alone."""

    def __init__(self, whole: torch.nn.Module) -> None:
        self._model = type(whole.model).__name__
        self._whole_forward = type(whole).forward.__code__
        self._scopes = {id(module): self.scope(name) for name, module in whole.named_modules()}
        self._files: dict[str, bool] = {}  # whether it is the user's
        self._sequence: list[int] = []  # autograd's numbers of the forward's ops, ascending, and their origins
        self._of_sequence: list[Origin] = []

    def scope(self, path: str) -> str:
        """The scope of a module with this path in the whole of model and loss."""
        return self._model if path == "model" else bare(path) or "loss"

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside `make_fx`: gives the nodes made meanwhile, by autograd's threads too, their origins."""
        tracer = get_proxy_mode().tracer
        create = tracer.create_node

        def create_node(kind: str, *args: Any, **kwargs: Any) -> torch.fx.Node:
            node = create(kind, *args, **kwargs)
            if kind == "call_function":
                node.meta[_KEY] = self._now()
            return node

        tracer.create_node = create_node
        try:
            yield
        finally:
            del tracer.create_node

    def _now(self) -> Origin | None:
        origin, is_users = self._on_stack(sys._getframe(2))
        running = torch._C._current_autograd_node()
        if running is not None:
            forward = self._of_forward(running._sequence_nr())
            if origin is None or forward is None or is_users:
                return origin or forward
            return Origin(origin.scope, forward.file, forward.line)  # checkpointing runs a module again
        # An op that autograd records has just taken its number; others see that of an earlier op.
        number = torch.autograd._get_sequence_nr() - 1
        if origin is not None and (not self._sequence or number > self._sequence[-1]):
            self._sequence.append(number)
            self._of_sequence.append(origin)
        return origin

    def _of_forward(self, number: int) -> Origin | None:
        """Of the op with this number, else of the one before: an op that writes to a view takes several."""
        index = bisect_right(self._sequence, number)
        return self._of_sequence[index - 1] if index else None

    def _on_stack(self, frame: FrameType | None) -> tuple[Origin | None, bool]:
        """The innermost module that is being called, with the innermost line of the user's; without one, with the line
        of torch's own forward, or of the function of torch's that is the loss. Says whether it is the user's."""
        scope = users = forward = outermost = None
        while frame is not None and (scope is None or users is None):
            code = frame.f_code
            if code is _ENGINE_CALL:
                break
            if code is self._whole_forward:
                scope = scope or self.scope("")
                break
            if code is _MODULE_CALL:
                scope = scope or self._scopes.get(id(frame.f_locals["self"]))
            elif users is None and self._is_users(code.co_filename):
                users = frame
            elif forward is None and code.co_name == "forward":
                forward = frame
            outermost = frame
            frame = frame.f_back
        if scope is None:
            return None, False
        shown = users or forward or outermost
        return Origin(scope, Path(shown.f_code.co_filename).name, shown.f_lineno), users is not None

    def _is_users(self, file: str) -> bool:
        known = self._files.get(file)
        if known is None:
            own = "-packages" in file or not file.startswith(_STDLIB)
            known = self._files[file] = own and not file.startswith(NOT_THE_USERS)
        return known


def put(node: torch.fx.Node, origin: Origin) -> None:
    """Says where `node` comes from."""
    node.meta[_KEY] = origin


def inherit(graph: torch.fx.Graph) -> None:
    """Ops of our own, such as the copy of a gradient, take the origin of what they work on."""
    for node in graph.nodes:
        _inherit_from(node, node.all_input_nodes)
    for node in reversed(graph.nodes):
        _inherit_from(node, node.users)


def _inherit_from(node: torch.fx.Node, others: Iterable[torch.fx.Node]) -> None:
    if node.op == "call_function" and node.meta.get(_KEY) is None:
        node.meta[_KEY] = next((origin for other in others if (origin := other.meta.get(_KEY))), None)


def to_bytes(named: list[tuple[str, torch.fx.Node]]) -> torch.Tensor:
    """The origins of nodes, each with the name of its value in TorchScript, as plugin/origins.h wants them."""
    numbers: dict[Origin, int] = {}
    ops = {}
    for name, node in named:
        origin = node.meta.get(_KEY)
        if origin is not None:
            ops[name] = numbers.setdefault(origin, len(numbers))
    origins = [[origin.scope, origin.file, origin.line] for origin in numbers]
    return torch.frombuffer(bytearray(json.dumps({"origins": origins, "ops": ops}).encode()), dtype=torch.uint8)
