# SPDX-License-Identifier: Apache-2.0
"""A training step of any length, for tests and benchmarks of the solver.

    PYTHONPATH=tests python -m support.large_step OUTPUT [OPS]

It is that of a residual network trained by SGD with momentum. A block is convolution, norm, ReLU, convolution, norm,
the sum with what entered the block, ReLU. Forward saves for backward what autograd would; each convolution allocates
workspace and frees it; backward gives a gradient for each of the block's six parameters; all updates, three ops for
each parameter, are written at the end, as an optimizer does. Pointwise ops name the inputs whose memory their output
may take. Nothing is drawn at random.
"""

import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from support.step_writer import StepWriter

FORWARD_OPS, BACKWARD_OPS, UPDATE_OPS = 7, 9, 3
PARAMETERS = 6  # of a block: two weights, and scale and shift of two norms
BLOCK_OPS = FORWARD_OPS + BACKWARD_OPS + PARAMETERS * UPDATE_OPS
OTHER_OPS = 2  # the first activation's copy, and the loss
WIDTHS = (64, 128, 256, 512)  # channels of each quarter of the network
BATCH = 32


@dataclass(frozen=True)
class ConvNorm:
    """What backward needs of a convolution and the norm after it."""

    entered: int
    weight: int
    scale: int
    shift: int
    convolved: int
    statistics: list[int]


@dataclass(frozen=True)
class Block:
    first: ConvNorm
    between: int  # the ReLU's result
    second: ConvNorm
    left: int  # what the block hands on
    activation_bytes: int


class LargeStep:
    """Writes the step; `writer.step` holds it."""

    def __init__(self, op_count: int) -> None:
        self.writer = StepWriter(f"residual network of {op_count} ops")
        block_count = -(-(op_count - OTHER_OPS) // BLOCK_OPS)
        self.gradients: list[tuple[int, int]] = []  # parameter and gradient, in the order of backward
        first_bytes, _ = self._sizes(0, block_count)
        batch = self.writer.tensor(first_bytes, persistent=True)
        value = self._make("to_device", "aten.clone.default", [batch], first_bytes)
        blocks: list[Block] = []
        for index in range(block_count):
            blocks.append(self._forward(value, *self._sizes(index, block_count)))
            value = blocks[-1].left
        gradient = self._make("loss", "loss_backward", [value], blocks[-1].activation_bytes)
        for block in reversed(blocks):
            gradient = self._backward(block, gradient)
        for parameter, gradient in self.gradients:
            self._update(parameter, gradient)

    @staticmethod
    def _sizes(block: int, block_count: int) -> tuple[int, int]:
        """Bytes of an activation and channels: each quarter halves the height and width and doubles the channels."""
        quarter = block * len(WIDTHS) // block_count
        side = 56 >> quarter
        return BATCH * WIDTHS[quarter] * side * side * 4, WIDTHS[quarter]

    def _make(self, name: str, kind: str, reads: list[int], size_bytes: int, reusable: list[int] = []) -> int:
        output = self.writer.tensor(size_bytes)
        same = [tensor for tensor in reusable if self.writer.step["tensors"][tensor]["size_bytes"] == size_bytes]
        fields = {"reuses": [{"output": output, "input": tensor} for tensor in same]} if same else {}
        self.writer.op(name, kind, reads, [output], **fields)
        return output

    def _convolve(self, name: str, kind: str, reads: list[int], size_bytes: int) -> int:
        workspace = self.writer.tensor(size_bytes // 2)
        output = self.writer.tensor(size_bytes)
        self.writer.op(name, kind, reads, [workspace, output],
                       events=[{"allocate": workspace}, {"allocate": output}, {"free": workspace}])
        return output

    def _conv_norm(self, value: int, activation_bytes: int, channels: int) -> tuple[ConvNorm, int]:
        weight = self.writer.tensor(channels * channels * 9 * 4, persistent=True)
        scale, shift = (self.writer.tensor(channels * 4, persistent=True) for _ in range(2))
        convolved = self._convolve("conv", "aten.convolution.default", [value, weight], activation_bytes)
        normed = self.writer.tensor(activation_bytes)
        statistics = [self.writer.tensor(channels * 4) for _ in range(2)]
        self.writer.op("norm", "aten.native_batch_norm.default", [convolved, scale, shift], [normed, *statistics])
        return ConvNorm(value, weight, scale, shift, convolved, statistics), normed

    def _forward(self, value: int, activation_bytes: int, channels: int) -> Block:
        first, normed = self._conv_norm(value, activation_bytes, channels)
        between = self._make("relu", "aten.relu.default", [normed], activation_bytes, [normed])
        second, normed = self._conv_norm(between, activation_bytes, channels)
        added = self._make("add", "aten.add.Tensor", [normed, value], activation_bytes, [normed, value])
        left = self._make("relu_2", "aten.relu.default", [added], activation_bytes, [added])
        return Block(first, between, second, left, activation_bytes)

    def _conv_norm_backward(self, part: ConvNorm, gradient: int, activation_bytes: int) -> int:
        tensors = self.writer.step["tensors"]
        into_conv, into_scale, into_shift = (
            self.writer.tensor(size) for size in (activation_bytes, *[tensors[part.scale]["size_bytes"]] * 2))
        self.writer.op("norm_backward", "aten.native_batch_norm_backward.default",
                       [gradient, part.convolved, part.scale, *part.statistics], [into_conv, into_scale, into_shift])
        into_weight = self._convolve("weight_grad", "aten.convolution_backward.default", [into_conv, part.entered],
                                     tensors[part.weight]["size_bytes"])
        entered_bytes = tensors[part.entered]["size_bytes"]
        into_value = self._convolve("input_grad", "aten.convolution_backward.default", [into_conv, part.weight],
                                    entered_bytes)
        self.gradients += [(part.scale, into_scale), (part.shift, into_shift), (part.weight, into_weight)]
        return into_value

    def _backward(self, block: Block, gradient: int) -> int:
        size_bytes = block.activation_bytes
        gradient = self._make("relu_2_backward", "aten.threshold_backward.default", [gradient, block.left], size_bytes,
                              [gradient, block.left])
        inner = self._conv_norm_backward(block.second, gradient, size_bytes)
        inner = self._make("relu_backward", "aten.threshold_backward.default", [inner, block.between], size_bytes,
                           [inner, block.between])
        inner = self._conv_norm_backward(block.first, inner, size_bytes)
        entered_bytes = self.writer.step["tensors"][block.first.entered]["size_bytes"]
        return self._make("add_grads", "aten.add.Tensor", [inner, gradient], entered_bytes, [inner, gradient])

    def _update(self, parameter: int, gradient: int) -> None:
        momentum = self.writer.tensor(self.writer.step["tensors"][parameter]["size_bytes"], persistent=True)
        self.writer.op("decay", "aten.mul_.Tensor", [momentum], [], [momentum])
        self.writer.op("collect", "aten.add_.Tensor", [momentum, gradient], [], [momentum])
        self.writer.op("update", "aten.add_.Tensor", [parameter, momentum], [], [parameter])


def write_large_step(path: Path, op_count: int = 50_000) -> dict:
    """Writes a step of `op_count` ops or a block more, with gzip if the name ends in ".gz", and returns it."""
    step = LargeStep(op_count).writer.step
    text = json.dumps(step, separators=(",", ":"))
    # The same bytes each time: gzip would write the time of day.
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    return step


if __name__ == "__main__":
    write_large_step(Path(sys.argv[1]), *map(int, sys.argv[2:]))
