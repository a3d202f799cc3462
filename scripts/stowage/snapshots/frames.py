# SPDX-License-Identifier: Apache-2.0
"""Names the place in a program from which memory was asked for, from the frames of a snapshot."""

import re
from collections.abc import Sequence
from typing import Any

BEFORE = "before recording"
NO_STACK = "no stack recorded"

_TORCH = re.compile(r"(^|/)(site-packages|dist-packages|pytorch)/torch/|^<frozen |/torch/_inductor/")
_OP = re.compile(r"^at::_ops::(\w+)::")
_GRADIENT = re.compile(r"^torch::autograd::generated::(\w+Backward\w*)::apply\(")
_WORKSPACE = re.compile(r"setWorkspaceForHandle|CUDABlasLtWorkspace|cublasLt.*[wW]orkspace")


class CallSites:
    """Names call sites, each by its `depth` innermost frames outside torch and by the op that ran there.

    Where no frame is outside torch, as in a backward pass, by the gradient function and the op.
    """

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        # By id, as stacks and frames are shared; they are kept, so that no other gets the id.
        self._names: dict[int, str] = {}
        self._kinds: dict[int, tuple[str, str]] = {}
        self._kept: list[Any] = []

    def of_block(self, block: Any) -> str:
        """Of a `trace.Block`: where it was allocated, or that nothing of it was recorded."""
        return BEFORE if block.first is None and not block.frames else self.of(block.frames)

    def of(self, frames: Any) -> str:
        """`train.py:12 in step: linear`; a name stands for itself."""
        if isinstance(frames, str):
            return frames
        if not isinstance(frames, (list, tuple)) or not frames:
            return NO_STACK
        known = self._names.get(id(frames))
        if known is None:
            known = self._names[id(frames)] = self._name(frames)
            self._kept.append(frames)
        return known

    def _name(self, frames: Sequence[Any]) -> str:
        places: list[str] = []
        found: dict[str, str] = {}
        for frame in frames:
            kind, text = self._kind(frame)
            if kind == "place":
                places.append(text)
                if len(places) == self._depth:
                    break
            elif kind and not places:
                found[kind] = text  # of nested ops, the one that the program called
        place = " < ".join(places) or found.get("gradient") or found.get("torch")
        return ": ".join(filter(None, (place, found.get("workspace") or found.get("op")))) or "inside torch"

    def _kind(self, frame: Any) -> tuple[str, str]:
        known = self._kinds.get(id(frame))
        if known is None:
            known = self._kinds[id(frame)] = _kind(frame)
            self._kept.append(frame)
        return known


def _kind(frame: Any) -> tuple[str, str]:
    """What a frame is of, and how to name it; empty where it tells nothing."""
    if not isinstance(frame, dict):
        return "", ""
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    if not isinstance(file, str) or not isinstance(line, int) or not isinstance(name, str):
        return "", ""
    if file.endswith(".py") or file.startswith("<"):
        text = f"{file.rsplit('/', 1)[-1]}:{line} in {name}"
        return ("torch" if _TORCH.search(file) else "place"), text
    for kind, pattern in (("op", _OP), ("gradient", _GRADIENT)):
        found = pattern.match(name)
        if found:
            return kind, found[1]
    return ("workspace", "cuBLAS workspace") if _WORKSPACE.search(name) else ("", "")
