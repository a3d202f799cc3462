# SPDX-License-Identifier: Apache-2.0
"""The models whose training step is measured, with batches of the shapes they are trained on.

Vision models come from torchvision with 1000 classes; language models are written here with torch.nn, and with the
numbers of their papers. Weights are random: only their shapes matter. No convolution network has an auxiliary head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional


class Decoder(nn.Module):
    """A GPT-2: pre-LN blocks with causal attention, learned positions and a head that is the embedding."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 50257, positions: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.embed(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embed.weight).flatten(0, 1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(self.norm(x)).chunk(3, -1)
        made = functional.scaled_dot_product_attention(
            self.heads_of(query), self.heads_of(key), self.heads_of(value), dropout_p=0.1, is_causal=True)
        x = x + self.drop(self.out(made.transpose(1, 2).flatten(2)))
        return x + self.drop(self.mlp(self.mlp_norm(x)))

    def heads_of(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class MaskedLanguageModel(nn.Module):
    """A BERT: post-LN encoder with the masked-token head, whose last layer is the embedding."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 30522, positions: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions, self.segments = nn.Embedding(positions, width), nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.positions(places) + self.segments(torch.zeros_like(tokens))
        x = self.transform(self.encoder(self.drop(self.norm(x))))
        return functional.linear(x, self.embed.weight, self.bias).flatten(0, 1)


class Encoder(nn.Module):
    """A transformer encoder that predicts a token at each position."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


class Plain(nn.Sequential):
    """A convolution network that takes a moment."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10),
        )


@dataclass(frozen=True)
class Model:
    name: str
    make: Callable[[], nn.Module]
    sample: tuple[int, ...]  # of one example: a picture or a film with its channels, or a number of tokens
    classes: int = 1000
    batches: tuple[int, ...] = (1, 32)
    in_table: bool = True  # whether the table's mean counts it

    def batch(self, size: int, device: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets; a target for each token."""
        if len(self.sample) > 1:
            return torch.randn((size, *self.sample), device=device), torch.zeros(size, dtype=torch.long, device=device)
        tokens = torch.zeros((size, *self.sample), dtype=torch.long, device=device)
        return tokens, torch.zeros(tokens.numel(), dtype=torch.long, device=device)


def _vision(name: str, sample: tuple[int, ...] = (3, 224, 224), **options: bool) -> Model:
    kind = torchvision.models.video if len(sample) == 4 else torchvision.models
    return Model(name, partial(getattr(kind, name), **options), sample)


def _decoder(name: str, layers: int, width: int, heads: int) -> Model:
    return Model(name, partial(Decoder, layers, width, heads), (1024,), batches=(1, 8), in_table=False)


MODELS = (
    *map(_vision, ("alexnet", "vgg16", "resnet18", "resnet50", "mobilenet_v2", "mnasnet1_0", "squeezenet1_0",
                   "efficientnet_b0")),
    _vision("googlenet", aux_logits=False, init_weights=False),
    *map(_vision, ("vit_b_16", "densenet121")),
    _vision("r3d_18", (3, 16, 112, 112)),
    Model("transformer", partial(Encoder, 4, 512, 8, 32000), (128,)),
    _decoder("gpt2", 12, 768, 12),
    _decoder("gpt2_medium", 24, 1024, 16),
    _decoder("gpt2_xl", 48, 1600, 25),
    Model("bert_base", partial(MaskedLanguageModel, 12, 768, 12), (512,), in_table=False),
)
QUICK = ("alexnet", "resnet18", "transformer")
#: For tests of the benchmark itself.
TINY = (
    Model("tiny_cnn", Plain, (3, 16, 16), batches=(2, 4)),
    Model("tiny_gpt", partial(Decoder, 2, 64, 2, 100, 16), (16,), batches=(2, 4), in_table=False),
)
#: For loops on the CPU, where a step of the long one takes too long.
SHORT_GPT2 = Model("gpt2_short", partial(Decoder, 12, 768, 12), (128,), batches=(1,), in_table=False)


def model_named(name: str) -> Model:
    return next(model for model in (*MODELS, *TINY, SHORT_GPT2) if model.name == name)
