# SPDX-License-Identifier: Apache-2.0
"""What a model does besides computing (hooks, changed attributes, random numbers outside torch): a graph does not."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import Any, Iterator

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import CaptureError, bare

_PLAIN = (bool, int, float, str)


def refuse_hooks(modules: list[torch.nn.Module], params: dict[str, torch.Tensor]) -> None:
    """A graph calls no hook, so a hook that eager would call must not be lost silently."""
    for module in modules:
        kind = type(module).__name__
        if isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            raise CaptureError(f"'{kind}' talks to other devices from hooks", "capture the module in it")
        if has_hooks(module):
            raise CaptureError(f"module '{kind}' has hooks, which a graph does not call", "remove them")
    for name, param in params.items():
        if param._backward_hooks or param._post_accumulate_grad_hooks:
            raise CaptureError(f"parameter '{bare(name)}' has hooks, which a graph does not call", "remove them")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether eager would call a hook when it runs `module` forward or backward."""
    state = module.__dict__
    forward, backward = state["_forward_hooks"] or state["_forward_pre_hooks"], state["_backward_hooks"]
    return bool(forward or backward or state["_backward_pre_hooks"])


class NoOutsideWrites(TorchDispatchMode):
    """While a model is traced, refuses an op that writes to a tensor unknown to the trace: it would really be run."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if op._schema.is_mutable:
            for argument, value in zip(op._schema.arguments, args):
                self._check(argument, value)
            for argument in op._schema.arguments:
                self._check(argument, kwargs.get(argument.name))
        return op(*args, **kwargs)

    def _check(self, argument: torch._C.Argument, value: Any) -> None:
        if not argument.is_write:
            return
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor):
                raise CaptureError("it writes to a tensor that is no buffer of the model", "register it as a buffer")


@contextmanager
def nothing_kept(modules: list[torch.nn.Module]) -> Iterator[None]:
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
