# SPDX-License-Identifier: Apache-2.0
"""What users do around a step: zero_grad in every form, freezing, tying, modes, new shapes, swapped tensors, errors."""

import copy

import pytest
import torch
from torch import nn
from twins import Twins, cross_entropy, digest

X, Y = torch.randn(6, 12), torch.randint(0, 5, (6,))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)


def net():
    return nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 5))


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(make_optimizer, set_to_none):
    twins = Twins(net, make_optimizer, X, Y)
    twins.train_with_schedule(X, Y, zero=lambda optimizer: optimizer.zero_grad(set_to_none=set_to_none))


def test_gradients_of_an_eager_backward_are_added_and_kept():
    twins = Twins(net, sgd, X, Y)
    for _ in range(3):
        for model, optimizer in twins.sides:
            torch.manual_seed(5)
            optimizer.zero_grad()
            cross_entropy(model(X), Y).backward()
        twins.train(X, Y, steps=2, zero=lambda optimizer: None)
        assert twins.model[0].weight.grad is not None
        twins.train(X, Y, zero=lambda optimizer: optimizer.zero_grad(set_to_none=False))


def test_gradients_of_some_parameters_exist():
    twins = Twins(net, adam, X, Y)
    for model, _ in twins.sides:
        model[0].weight.grad = torch.full_like(model[0].weight, 0.25)
    twins.train(X, Y, steps=3, zero=lambda optimizer: None)
    assert twins.model[0].bias.grad is None


def test_parameters_that_no_optimizer_knows():
    twins = Twins(net, lambda model: sgd(model[4]), X, Y)
    twins.train(X, Y, steps=2)
    for model, _ in twins.sides:
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
    twins.train(X, Y, steps=2, zero=lambda optimizer: None)
    assert twins.model[0].weight.grad.abs().sum() > 0


class Odd(nn.Module):
    """A frozen, an unused and a tied parameter, a module called twice, a buffer not saved and one given anew."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(12, 12)
        self.norm = nn.BatchNorm1d(12)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.first = nn.Linear(12, 12, bias=False)
        self.tied = nn.Linear(12, 12, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("average", torch.zeros(12))

    def forward(self, x):
        self.calls += 1
        x = self.norm(self.twice(self.norm(self.twice(x))))
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.tied(self.frozen(self.first(x - self.average)).relu())


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_frozen_unused_tied_and_shared(make_optimizer):
    twins = Twins(Odd, make_optimizer, X, Y)
    twins.train_with_schedule(X, Y)
    assert twins.model.calls.item() == 10
    assert twins.model.unused.weight not in twins.optimizer.state
    twins.train(X, Y, steps=2, zero=lambda optimizer: optimizer.zero_grad(set_to_none=False))
    for model, _ in twins.sides:  # a gradient of zeros is a gradient: weight decay and momentum apply
        model.unused.weight.grad = torch.zeros(3, 3)
    twins.train(X, Y, steps=2, zero=lambda optimizer: optimizer.zero_grad(set_to_none=False))


def test_gradients_in_another_layout_than_their_parameter():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 12))
            self.shift = nn.Parameter(torch.randn(12, 12).t())
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.weight.t() @ x.t() + (self.weight + self.shift).sum() * self.scale

    twins = Twins(Summed, adam, X, Y, lambda output, _: output.sum())
    twins.train_with_schedule(X, Y)


def test_a_gradient_that_is_a_parameter_is_read_before_that_parameter_changes():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return (a * b).sum()

        @staticmethod
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return b, a

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

        def forward(self, x):
            return Product.apply(self.a, self.b)

    Twins(Pair, sgd, X, Y, lambda output, _: output).train(X, Y, steps=4)


def test_train_and_eval():
    twins = Twins(net, sgd, X, Y)
    for mode in (True, False, True):
        for model, _ in twins.sides:
            model.train(mode)
        twins.train(X, Y, steps=2)
    for model, _ in twins.sides:
        model[1].eval()
    twins.train(X, Y, steps=2)
    assert len(twins.step.graphs) == 3


def test_a_module_number_may_change():
    twins = Twins(net, sgd, X, Y)
    for rate in (0.2, 0.6, 0.2):
        for model, _ in twins.sides:
            model[3].p = rate
        twins.train(X, Y, steps=2)
    assert len(twins.step.graphs) == 2


def test_new_shapes_are_captured_when_met():
    twins = Twins(net, sgd, X, Y)
    for size in (6, 4, 6, 5, 4):
        twins.train(X[:size], Y[:size], steps=2)
    assert len(twins.step.graphs) == 3


def test_freezing_and_replacing_layers():
    twins = Twins(net, sgd, X, Y)
    twins.train(X, Y, steps=2)
    for model, _ in twins.sides:
        model[0].requires_grad_(False)
    twins.train(X, Y, steps=2)
    torch.manual_seed(3)
    head = nn.Linear(24, 5)
    for model, optimizer in twins.sides:
        model[4] = copy.deepcopy(head)
        optimizer.add_param_group({"params": list(model[4].parameters())})
    twins.train(X, Y, steps=2)
    for model, _ in twins.sides:
        model[2] = nn.GELU()
    twins.train(X, Y, steps=2)


def test_swapped_data_and_dtype_are_honoured():
    twins = Twins(net, sgd, X, Y)
    twins.train(X, Y, steps=2)
    for model, _ in twins.sides:
        model[0].weight.data = model[0].weight.data * 2
        model[4].weight.data = model[4].weight.data.t().contiguous().t()
        model[1].running_mean = torch.ones(24)
    twins.train(X, Y, steps=2)


def test_a_loss_with_parameters_and_a_loss_that_reads_the_model():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, output, target):
            return cross_entropy(output * self.temperature, target)

    model, loss_fn = net(), Scaled()
    twin_model, twin_loss = copy.deepcopy(model), copy.deepcopy(loss_fn)
    import stowage

    def whole(model, loss_fn):
        return lambda output, target: loss_fn(output, target) + 1e-2 * sum(p.square().sum() for p in model.parameters())

    losses = []
    optimizer = torch.optim.SGD([*model.parameters()], lr=0.1, foreach=False)
    step = stowage.capture(model, whole(model, cross_entropy), optimizer, X, Y, strict=True)
    twin_optimizer = torch.optim.SGD([*twin_model.parameters()], lr=0.1, foreach=False)
    for seed in range(4):
        torch.manual_seed(seed)
        losses.append(step(X, Y))
        torch.manual_seed(seed)
        twin_optimizer.zero_grad()
        loss = whole(twin_model, cross_entropy)(twin_model(X), Y)
        loss.backward()
        twin_optimizer.step()
        assert digest(losses[-1]) == digest(loss)
        assert digest(model.state_dict()) == digest(twin_model.state_dict())

    optimizer = torch.optim.Adam([*model.parameters(), *loss_fn.parameters()])
    step = stowage.capture(model, loss_fn, optimizer, X, Y, strict=True)
    twin_optimizer = torch.optim.Adam([*twin_model.parameters(), *twin_loss.parameters()], foreach=False)
    for seed in range(4):
        torch.manual_seed(seed)
        step(X, Y)
        torch.manual_seed(seed)
        twin_optimizer.zero_grad()
        twin_loss(twin_model(X), Y).backward()
        twin_optimizer.step()
        assert digest(loss_fn.temperature) == digest(twin_loss.temperature)
        assert digest(model.state_dict()) == digest(twin_model.state_dict())


def test_a_scheduler_does_not_complain_about_order(recwarn):
    twins = Twins(net, sgd, X, Y)
    schedule = torch.optim.lr_scheduler.StepLR(twins.optimizer, 1)
    twins.step(X, Y)
    schedule.step()
    assert not [str(warning.message) for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_a_step_that_raises_leaves_everything_usable():
    def model():
        return nn.Sequential(nn.Embedding(10, 12), nn.Flatten(), nn.Linear(36, 5))

    tokens, wrong = torch.randint(0, 10, (6, 3)), torch.full((6, 3), 99)
    twins = Twins(model, adam, tokens, Y)
    before = twins.state(twins.model, twins.optimizer)
    with pytest.raises(Exception, match="index out of range"):
        twins.step(wrong, Y)
    assert twins.state(twins.model, twins.optimizer) == before
    twins.train(tokens, Y, steps=2)
    with pytest.raises(Exception, match="index out of range"):
        twins.step(wrong, Y)
    twins.train(tokens, Y, steps=2)
