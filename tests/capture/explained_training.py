# SPDX-License-Identifier: Apache-2.0
"""Trains a captured step, metered: `explained_training.py MODEL STORE` prints the peak of each step in bytes."""

import json
import sys

import stowage
import torch
import torchvision
from torch import nn

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=256, dropout=0.1, batch_first=True)
        self.embed = nn.Embedding(500, 64)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


def images(batch: int, pixels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, pixels, pixels), torch.randint(1000, (batch,))


MODELS = {
    "alexnet": (torchvision.models.alexnet, lambda: images(32, 64)),
    "resnet18 small": (torchvision.models.resnet18, lambda: images(8, 64)),
    "resnet18": (torchvision.models.resnet18, lambda: images(32, 224)),
    "encoder": (Encoder, lambda: (torch.randint(500, (2, 16)), torch.randint(500, (32,)))),
}


def main() -> None:
    name, store = sys.argv[1:]
    make, make_batch = MODELS[name]
    stowage.set_option("meter", "1")
    stowage.enable(store=store)
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = make_batch()
    step = stowage.capture(model, nn.functional.cross_entropy, optimizer, inputs, targets, strict=True)
    peaks = []
    for _ in range(5):
        torch.ops.stowage.reset_peak()
        loss = step(inputs, targets)
        peaks.append(stowage.status()["meter"]["peak_bytes"])
        del loss
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
