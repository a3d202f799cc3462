# SPDX-License-Identifier: Apache-2.0
"""Hand-placed activation checkpoints, as people write them: around each block of a model, or around sqrt(n) segments."""

import math

from measuring.models import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torchvision.models.resnet import Bottleneck
from torchvision.models.vision_transformer import EncoderBlock

#: In models that are measured, each takes what the one before returns, and nothing else.
BLOCKS = (Bottleneck, EncoderBlock, Block)


class Checkpointed(nn.Module):
    """Keeps what goes into a block, and makes the rest again for the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


class Segments(nn.Module):
    """All blocks of a model, in about sqrt(n) segments, of which PyTorch keeps the last one whole."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(list(self.blocks), round(math.sqrt(len(self.blocks))), x, use_reentrant=False)


def checkpoint_each(network: nn.Module) -> None:
    for parent, name, block in places(network):
        setattr(parent, name, Checkpointed(block))


def checkpoint_segments(network: nn.Module) -> None:
    """The first block's place takes them all; those of the others hand on what they are given."""
    found = places(network)
    for parent, name, _ in found:
        setattr(parent, name, nn.Identity())
    first, name, _ = found[0]
    setattr(first, name, Segments([block for _, _, block in found]))


def places(network: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Each block in the order in which it runs, with the module that holds it and its name there."""
    found = [(parent, name, block) for parent in network.modules() for name, block in parent.named_children()
             if isinstance(block, BLOCKS)]
    if not found:
        raise ValueError(f"cannot checkpoint '{type(network).__name__}': it has none of the blocks that are known")
    return found
