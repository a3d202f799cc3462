# SPDX-License-Identifier: Apache-2.0
"""A captured step equals eager training bit for bit, over ten steps with a learning-rate schedule."""

import pytest
import torch
import torchvision
from torch import nn
from twins import Twins, cross_entropy


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def labels(count, classes=10):
    return torch.randint(0, classes, (count,))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, groups=2)
        self.norm2 = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = nn.functional.gelu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self, causal=False, layers=2):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)
        self.causal = causal

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return self.head(self.encoder(self.embed(tokens), mask=mask, is_causal=self.causal)).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.rnn = kind(16, 24, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(24, 10)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0][:, -1])


def alexnet():
    model = torchvision.models.alexnet(num_classes=10)
    model.classifier[1] = nn.Linear(9216, 64)  # 57 of its 61 million parameters are here and in the next layer
    model.classifier[4] = nn.Linear(64, 64)
    model.classifier[6] = nn.Linear(64, 10)
    return model


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))


def dropout_net():
    return nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))


IMAGES = torch.randn(4, 3, 16, 16)
TOKENS = torch.randint(0, 50, (4, 12))
MODELS = {
    "mlp": (mlp, sgd, torch.randn(8, 20), labels(8)),
    "conv": (ConvNet, sgd, IMAGES, labels(4)),
    "conv_channels_last": (
        lambda: ConvNet().to(memory_format=torch.channels_last),
        sgd,
        IMAGES.to(memory_format=torch.channels_last),
        labels(4),
    ),
    "dropout": (dropout_net, sgd, torch.randn(8, 20), labels(8)),
    "encoder": (Encoder, adamw, TOKENS, torch.randint(0, 50, (4, 12))),
    "causal_encoder": (lambda: Encoder(causal=True), adamw, TOKENS, torch.randint(0, 50, (4, 12))),
    "lstm": (lambda: Recurrent(nn.LSTM), adamw, TOKENS, labels(4)),
    "gru": (lambda: Recurrent(nn.GRU), adamw, TOKENS, labels(4)),
    "double": (lambda: mlp().double(), adamw, torch.randn(8, 20).double(), labels(8)),
    "bfloat16": (lambda: mlp().bfloat16(), adamw, torch.randn(8, 20).bfloat16(), labels(8)),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), sgd, torch.randn(2, 3, 64, 64), labels(2)),
    "alexnet": (alexnet, sgd, torch.randn(2, 3, 64, 64), labels(2)),
    "mobilenet": (
        lambda: torchvision.models.mobilenet_v3_small(num_classes=10), adamw, torch.randn(2, 3, 64, 64), labels(2)
    ),
    "vit": (
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, dropout=0.1, num_classes=10),
        adamw,
        torch.randn(2, 3, 32, 32),
        labels(2),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_eager(name):
    make_model, make_optimizer, x, y = MODELS[name]
    twins = Twins(make_model, make_optimizer, x, y)
    twins.train_with_schedule(x, y)
    assert len(twins.step.graphs) == 1


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(6, 8)
        self.scale = torch.full((8,), 0.5)  # a constant: no buffer, no parameter

    def forward(self, left, right):
        shift = torch.tensor([1.0, -1.0] * 4)
        return self.left(left) * self.scale, self.right(right) + shift


def test_several_inputs_targets_and_constants():
    def loss_fn(output, targets):
        return cross_entropy(output[0], targets["left"]) + nn.functional.mse_loss(output[1], targets["right"])

    x = torch.randn(5, 4), torch.randn(5, 6)
    y = {"left": labels(5, 8), "right": torch.randn(5, 8)}
    Twins(TwoInputs, sgd, x, y, loss_fn).train_with_schedule(x, y)


def test_masked_attention_with_infinities():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 8)

        def forward(self, x):
            scores = self.project(x) @ x.transpose(1, 2)
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            a, b = scores.masked_fill(mask, float("-inf")).softmax(-1).chunk(2)
            return torch.cat([b, a])[:, 0]

    x, y = torch.randn(4, 6, 8), labels(4, 6)
    Twins(Masked, sgd, x, y).train_with_schedule(x, y)


def test_autocast_equals_eager():
    x, y = torch.randn(8, 20), labels(8)
    with torch.autocast("cpu", torch.bfloat16):
        twins = Twins(mlp, sgd, x, y)
    for _ in range(4):  # a context a step: eager keeps its casts of the weights until the context ends
        with torch.autocast("cpu", torch.bfloat16):
            twins.train(x, y)
    twins.train(x, y, steps=2)
    assert len(twins.step.graphs) == 2


def test_adding_a_literal_zero_keeps_eagers_signed_zeros():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (1 / (x * self.weight + 0)).clamp(-2, 2)  # 1 / -0.0 is -inf, 1 / (-0.0 + 0) is inf

    x, y = torch.tensor([-0.0, 0.0, 1.0, 2.0]), torch.zeros(4)
    Twins(Shifted, sgd, x, y, nn.functional.mse_loss).train(x, y, steps=4)


def test_values_read_on_the_host_and_shapes_that_depend_on_them():
    class Selects(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(20, 10)

        def forward(self, x):
            x = self.project(x)
            return x * x.detach().max().item() + x[x > 0].sum()

    x, y = torch.randn(8, 20), labels(8)
    twins = Twins(Selects, sgd, x, y)
    for _ in range(5):
        twins.train(torch.randn(8, 20), y, steps=2)
    assert len(twins.step.graphs) == 1
