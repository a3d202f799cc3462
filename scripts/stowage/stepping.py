# SPDX-License-Identifier: Apache-2.0
"""Tells stowage where a step of a training loop begins and ends."""

from __future__ import annotations

import threading
from functools import cache
from types import TracebackType
from typing import Any

from . import plugin
from .sharing import plan_sharing


class step:
    """One step of a loop: `with stowage.step():` around what the loop does in one turn.

    What the calling thread and autograd allocate within is recorded; a step that has been met twice is planned, and from
    then on served from one arena. Nothing is reordered, so that any PyTorch code may run inside. Steps of other shapes,
    evaluation among them, may have a `with` of their own: each kind gets its own plan.

    `device` is "cpu", "cuda" or "cuda:N"; by default CUDA's current device if CUDA is in use, else the CPU. Steps do not
    nest: ValueError. A step that ends in an exception is not learnt from. Does nothing while stowage is disabled.
    """

    __slots__ = ("_device",)

    def __init__(self, device: Any = "") -> None:
        self._device = str(device)

    def __enter__(self) -> None:
        _op("begin_step")(self._device)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _end_step(kind is None)


class _Marks(threading.local):
    generation = -1  #: of the plugin, in which the thread's last mark opened a step


_marks = _Marks()


def mark_step(device: Any = "") -> None:
    """Ends the step that the thread's last call opened, if any, and opens the next: call it once in every turn of the
    loop, at its end or at its begin. As `step` in all else."""
    if _marks.generation == plugin.generation():
        _end_step(True)
    _op("begin_step")(str(device))
    _marks.generation = plugin.generation()


def _end_step(complete: bool) -> None:
    sharing = plan_sharing(plugin.load())
    if sharing is None:
        _op("end_step")(complete)
    else:
        sharing.end_step(complete)


@cache
def _op(name: str) -> Any:
    """The op's only overload, which PyTorch need not choose then: a step of tiny ops takes but some hundred microseconds."""
    return getattr(plugin.load(), name).default
