# SPDX-License-Identifier: Apache-2.0
"""Changes to a program's planned run that the soak must find: what it is tested with."""

from __future__ import annotations

from collections.abc import Callable


def _wrong_op(text: str) -> str:
    return text.replace("torch.cumsum(", "torch.cumprod(")


def _lost_draw(text: str) -> str:
    return text.replace("F.dropout(", "F.dropout(0.5 * ")


def _written_tensor(text: str) -> str:
    write = "    for each in kept: each is None or each.detach().zero_()\n"
    return text.replace('    see("kept tensors"', write + '    see("kept tensors"')


def _abort(text: str) -> str:
    return text.replace("optimizer.zero_grad(set_to_none=False)", "__import__('os').abort()")


def _hang(text: str) -> str:
    return text.replace("while n", "while True or n")


def _shared_memory(text: str) -> str:
    """For dry CUDA: results on their inputs' memory are memory given out twice."""
    train = "def train(stowage, see):\n"
    return text.replace(train, train + '    stowage.set_option("reuse", "1")\n')


FAULTS: dict[str, Callable[[str], str]] = {
    "wrong-op": _wrong_op, "lost-draw": _lost_draw, "written-tensor": _written_tensor,
    "abort": _abort, "hang": _hang, "shared-memory": _shared_memory}
