# SPDX-License-Identifier: Apache-2.0
"""Why a training step cannot be captured, in one line that says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

#: How the names of files begin that are not the user's.
NOT_THE_USERS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep, "<")


class CaptureError(RuntimeError):
    """A training step cannot become one graph: `cannot capture 'MODEL': CAUSE; FIX`."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(f"{cause}; {fix}")
        self.cause = cause
        self.fix = fix


def explain(error: Exception) -> CaptureError:
    """Says in one line why tracing or scripting ended in `error`, where in the user's code, and what to do."""
    if isinstance(error, CaptureError):
        return error
    where = _place(error)
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)):
        return CaptureError(f"its control flow depends on a tensor's value{where}", "use torch.where")
    if "Cannot access data pointer" in text:
        cause = f"an op reads the memory of its tensors while it is traced, as cuDNN's LSTM and GRU do{where}"
        return CaptureError(cause, "for these, set torch.backends.cudnn.enabled to False")
    return CaptureError(f"tracing it raised {type(error).__name__}: {text.rstrip('.')}{where}", "mend that")


def _place(error: Exception) -> str:
    """' at FILE:LINE' of the innermost frame of the user's code, or nothing."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(NOT_THE_USERS):
            place = f" at {Path(file).name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def bare(name: str) -> str:
    """A name as the user knows it, without the wrapper's 'model.'."""
    return name.removeprefix("model.")
