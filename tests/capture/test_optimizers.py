# SPDX-License-Identifier: Apache-2.0
"""The weight update inside a captured step equals torch.optim's single-tensor arithmetic bit for bit."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from twins import Twins

X, Y = torch.randn(8, 12), torch.randint(0, 5, (8,))


def net():
    return nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 5))


def groups(model):
    return [
        {"params": list(model[0].parameters()), "lr": 0.01, "weight_decay": 0.1},
        {"params": list(model[1].parameters()), "weight_decay": 0},
        {"params": list(model[4].parameters()), "lr": 0.1, "maximize": True},
    ]


OPTIMIZERS = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.1),
    "sgd_integer_lr": lambda m: SGD(m.parameters(), lr=1),
    "sgd_momentum": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9),
    "sgd_dampening": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "sgd_nesterov": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
    "sgd_maximize": lambda m: SGD(m.parameters(), lr=1e-3, momentum=0.9, maximize=True),
    "sgd_groups": lambda m: SGD(groups(m), lr=0.05, momentum=0.9),
    "adam": lambda m: Adam(m.parameters(), lr=0.01),
    "adam_weight_decay": lambda m: Adam(m.parameters(), lr=0.01, weight_decay=0.1, betas=(0.8, 0.99), eps=1e-6),
    "adam_amsgrad": lambda m: Adam(m.parameters(), lr=0.01, amsgrad=True, maximize=True),
    "adam_decoupled": lambda m: Adam(m.parameters(), lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda m: AdamW(m.parameters(), lr=0.01),
    "adamw_amsgrad": lambda m: AdamW(m.parameters(), lr=0.01, amsgrad=True, weight_decay=0.2),
    "adamw_groups": lambda m: AdamW(groups(m), lr=0.02),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_eager(name):
    twins = Twins(net, OPTIMIZERS[name], X, Y)
    twins.train_with_schedule(X, Y)
    assert len(twins.step.graphs) == 1, "numbers are inputs: nothing is captured anew"


def test_first_momentum_keeps_the_gradients_signed_zeros():
    class Signed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.weight * x

    x, y = torch.tensor([-0.0, 0.0, 1.0, -1.0]), torch.zeros(4)
    twins = Twins(Signed, OPTIMIZERS["sgd_dampening"], x, y, lambda output, _: output.sum())
    twins.train(x, y, steps=1)
    plain = Twins(Signed, OPTIMIZERS["sgd_momentum"], x, y, lambda output, _: output.sum())
    plain.train(x, y, steps=1)
    buffer = plain.optimizer.state[plain.model.weight]["momentum_buffer"]
    assert buffer.signbit().tolist() == [True, False, False, True]


def test_state_is_made_at_the_first_step_as_eager_makes_it():
    twins = Twins(net, OPTIMIZERS["adam"], X, Y)
    assert not twins.optimizer.state
    twins.train(X, Y)
    state = twins.optimizer.state[twins.model[0].weight]
    assert list(state) == ["step", "exp_avg", "exp_avg_sq"]
    assert state["step"].item() == 1 and state["step"].dtype == torch.float32


def test_numbers_may_change_between_steps():
    twins = Twins(net, OPTIMIZERS["sgd_dampening"], X, Y)
    for momentum, decay in [(0.9, 0.01), (0.5, 0.2), (0.7, 0.001)]:
        for _, optimizer in twins.sides:
            optimizer.param_groups[0].update(momentum=momentum, weight_decay=decay)
        twins.train(X, Y, steps=2)
    assert len(twins.step.graphs) == 1


def test_switching_a_branch_captures_anew():
    twins = Twins(net, OPTIMIZERS["sgd"], X, Y)
    twins.train(X, Y, steps=2)
    for options in [{"momentum": 0.9}, {"weight_decay": 0.1}, {"nesterov": True}, {"momentum": 0, "nesterov": False}]:
        for _, optimizer in twins.sides:
            optimizer.param_groups[0].update(options)
        twins.train(X, Y, steps=3)


@pytest.mark.parametrize("name", ["sgd_momentum", "adamw"])
def test_a_group_added_later_has_its_own_step_count(name):
    twins = Twins(net, lambda m: OPTIMIZERS[name](m[:2]), X, Y)
    twins.train(X, Y, steps=3)
    for model, optimizer in twins.sides:
        optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 0.03})
    twins.train_with_schedule(X, Y, steps=4)


def test_parameters_of_one_group_with_different_step_counts():
    twins = Twins(net, OPTIMIZERS["adam"], X, Y)
    for frozen in (True, False):
        for model, _ in twins.sides:
            model[0].requires_grad_(not frozen)
        twins.train(X, Y, steps=3)
    steps = [state["step"].item() for state in twins.optimizer.state.values()]
    assert sorted(steps) == [3, 3, 6, 6, 6, 6]


@pytest.mark.parametrize("name", ["sgd_nesterov", "adam_amsgrad"])
def test_loaded_state_is_used(name):
    twins = Twins(net, OPTIMIZERS[name], X, Y)
    twins.train(X, Y, steps=3)
    saved = copy.deepcopy([(model.state_dict(), optimizer.state_dict()) for model, optimizer in twins.sides])
    twins.train(X, Y, steps=3)
    for (model, optimizer), (model_state, optimizer_state) in zip(twins.sides, saved):
        model.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
    twins.train(X, Y, steps=3)
    assert len(twins.step.graphs) == 1


def test_default_dtype_double_makes_a_double_step_count():
    torch.set_default_dtype(torch.float64)
    try:
        twins = Twins(net, OPTIMIZERS["adam"], X.double(), Y)
        twins.train(X.double(), Y, steps=3)
        assert twins.optimizer.state[twins.model[0].weight]["step"].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
