# SPDX-License-Identifier: Apache-2.0
"""A planned training step equals the unplanned one, and eager, byte by byte."""

import pytest
import stowage
import torch
import torchvision
from planning import planned_phase
from torch import nn
from twins import Twins, digest


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.embed = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


class Shared(nn.Module):
    """One convolution and one batch norm, each called twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 10)

    def forward(self, x):
        for _ in range(2):
            x = torch.relu(self.norm(self.conv(x)))
        return self.head(x.mean((2, 3)))


def mlp():
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Dropout(0.3), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))


def conv_net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.2), nn.Linear(8 * 9, 10))


def vectors():
    return torch.randn(6, 20), torch.randint(10, (6,))


def images(size: int, batch: int = 4, classes: int = 10):
    return lambda: (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,)))


def tokens():
    return torch.randint(50, (3, 12)), torch.randint(50, (36,))


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
}
MODELS = {
    "mlp": (mlp, vectors),
    "conv_net": (conv_net, images(8)),
    "shared": (Shared, images(8)),
    "encoder": (Encoder, tokens),
}


def train_planned(make_model, make_optimizer, make_batch, steps: int = 10) -> Twins:
    torch.manual_seed(1)
    x, y = make_batch()
    stowage.enable()
    twins = Twins(make_model, make_optimizer, x, y)
    twins.train_with_schedule(x, y, steps)  # compares losses, parameters, buffers, state and generator after each
    assert planned_phase(min_runs=steps - 3)["last"]["late_frees"] == 0
    return twins


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_planned_step_equals_eager(model, optimizer):
    make_model, make_batch = MODELS[model]
    train_planned(make_model, OPTIMIZERS[optimizer], make_batch)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_planned_step_equals_the_captured_one_unplanned(model, optimizer):
    make_model, make_batch = MODELS[model]

    def train() -> list:
        torch.manual_seed(0)
        network = make_model()
        adjust = OPTIMIZERS[optimizer](network)
        x, y = make_batch()
        step = stowage.capture(network, nn.functional.cross_entropy, adjust, x, y, strict=True)
        schedule = torch.optim.lr_scheduler.StepLR(adjust, 2, 0.5)
        losses = []
        for _ in range(10):
            losses.append(digest(step(x, y)))
            schedule.step()
        return [losses, digest(network.state_dict()), digest(adjust.state_dict()), step]

    unplanned = train()
    stowage.enable()
    planned = train()
    assert planned[:3] == unplanned[:3]
    planned_phase(min_runs=7)


@pytest.mark.parametrize(
    ("make_model", "size", "optimizer"),
    [(torchvision.models.resnet18, 64, "momentum"), (torchvision.models.alexnet, 64, "momentum")],
    ids=["resnet18", "alexnet"],
)
def test_real_model_planned_equals_eager_and_99_percent_of_bytes_are_planned(make_model, size, optimizer):
    twins = train_planned(make_model, OPTIMIZERS[optimizer], images(size, batch=2, classes=1000), steps=10)
    assert twins.step.captured
    phase = planned_phase()
    planned = phase["last"]["hits"]["bytes"]
    upstream = sum(count["bytes"] for count in phase["last"]["misses"].values())
    assert planned >= 0.99 * (planned + upstream)
    assert phase["arena_bytes"] <= 1.01 * phase["arena_bound_bytes"]
    assert phase["last_peak_bytes"] <= phase["program_peak_bytes"]


def test_batches_of_two_shapes_are_both_planned():
    stowage.enable()
    torch.manual_seed(0)
    batches = [(torch.randn(rows, 20), torch.randint(10, (rows,))) for rows in (6, 3)]
    twins = Twins(mlp, OPTIMIZERS["momentum"], *batches[0])
    for _ in range(7):
        for x, y in batches:
            twins.train(x, y)
    regions = [region for region in stowage.status()["regions"] if region["alive"]][-2:]
    assert [region["phases"][0]["state"] for region in regions] == ["planned", "planned"]


def fresh_net() -> nn.Module:
    """A module of a type of its own: TorchScript keeps what it learnt of a type, and its later runs differ in last bits."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(20, 40), nn.Linear(40, 10)

        def forward(self, x):
            hidden = torch.tanh(self.first(x))
            hidden = torch.sigmoid(hidden * hidden) + hidden.relu() * 0.5
            return self.last(torch.dropout(hidden.exp(), 0.2, self.training))

    return torch.jit.script(Net())


def train_scripted() -> list:
    torch.manual_seed(0)
    network = fresh_net()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x, y = vectors()
    seen = []
    for step in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward(retain_graph=step % 3 == 0)
        if step % 3 == 0:
            loss.backward()  # again, through the same saved tensors
        kept = [parameter.grad.clone() for parameter in network.parameters()]
        optimizer.step()
        seen.append(digest([loss, kept, list(network.parameters())]))
    return [seen, network]


def train_two_at_a_time() -> list:
    torch.manual_seed(0)
    network = fresh_net()
    x, _ = vectors()
    seen = []
    for _ in range(8):
        losses = [network(x * factor).pow(2).sum() for factor in (1.0, 2.0)]
        for loss in losses:
            loss.backward()
        seen.append(digest([losses, [parameter.grad for parameter in network.parameters()]]))
    return [seen, network]


@pytest.mark.parametrize("train", [train_scripted, train_two_at_a_time])
def test_scripted_module_trains_as_without_stowage(train):
    """Forward and backward graphs of TorchScript's own autodiff reach the pass; what autograd records does not move."""
    assert train()[0] == train()[0]
    unplanned = train()
    stowage.enable()
    planned = train()
    assert planned[0] == unplanned[0]
    regions = [region for region in stowage.status()["regions"] if region["alive"]]
    assert any(phase["state"] == "planned" for region in regions for phase in region["phases"])


def test_batch_that_the_loss_refuses_changes_what_it_changes_in_eager():
    """A label out of range: the statistics of the forward are updated, no weight is, and the next steps are right."""
    stowage.enable()
    torch.manual_seed(1)
    x, y = images(8)()
    twins = Twins(conv_net, OPTIMIZERS["adam"], x, y)
    twins.train(x, y, steps=6)
    bad = torch.tensor([1, 2, 99, 3])
    states = []
    for step, (model, optimizer) in zip((twins.step, None), twins.sides):
        torch.manual_seed(99)
        with pytest.raises((IndexError, RuntimeError), match="Target 99 is out of bounds"):
            step(x, bad) if step else nn.functional.cross_entropy(model(x), bad)
        states.append(twins.state(model, optimizer))
    assert states[0] == states[1]
    twins.train(x, y, steps=4)
    assert planned_phase()["last"]["misses"]["busy"]["allocations"] == 0
