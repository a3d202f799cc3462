# SPDX-License-Identifier: Apache-2.0
"""Processes that examine programs: one that dies or hangs takes nothing else with it."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soak.loop import Outcome

#: TorchScript never gives back what it compiled, so that a process is replaced after so many programs.
PROGRAMS_EACH = 60


class Worker:
    """One process at a time. A program has `limit_s` to end."""

    def __init__(self, limit_s: float = 60.0, fault: str = "") -> None:
        self.limit_s = limit_s
        self.fault = fault
        self.examined = 0
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def examine(self, text: str, alone: bool = False) -> Outcome:
        """What comes of the program; with `alone`, only of its run without stowage. One that dies is run again like that:
        TorchScript's own passes crash on some programs."""
        from soak.loop import Outcome

        if self.examined >= PROGRAMS_EACH:
            self.stop()
        if not self._process:
            self._start()
        self.examined += 1
        try:
            self._pipe.send((text, alone))
            if self._pipe.poll(self.limit_s):
                return self._pipe.recv()
            failure = f"not finished after {self.limit_s:g} s"
        except (EOFError, ConnectionError):
            self._process.join()
            failure = f"the process died with exit code {self._process.exitcode}"
        self.stop()
        if not alone and self.examine(text, alone=True).failure:
            return Outcome(ends_torch=True)
        return Outcome(failure)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process, self.examined = None, 0

    def _start(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # for programs' own threads, which no call here reaches
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end, self.fault), daemon=True)
        self._process.start()
        end.close()
        self._pipe.recv()  # torch is loaded


def _serve(pipe: Any, fault: str) -> None:
    import torch
    from soak.loop import examine

    torch.set_num_threads(1)
    pipe.send(None)
    while True:
        try:
            text, alone = pipe.recv()
        except EOFError:
            return
        pipe.send(examine(text, fault, alone))
