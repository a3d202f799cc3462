# SPDX-License-Identifier: Apache-2.0
"""What cannot be captured is said in one line, and training goes on as eager; with strict it raises."""

import copy
import random
import warnings

import numpy
import pytest
import stowage
import torch
from torch import nn
from twins import cross_entropy, digest

X, Y = torch.randn(6, 12), torch.randint(0, 5, (6,))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        return self.fc(x)


class Branches(Net):
    def forward(self, x):
        x = self.fc(x)
        if x.sum() > 0:
            x = x * 2
        return x


class ReadsItem(Net):
    def forward(self, x):
        return self.fc(x) * (2.0 if x.max().item() > 1 else 1.0)


class Compares(Net):
    def forward(self, x):
        return self.fc(x) if torch.equal(x, x.abs()) else self.fc(x.abs())


class Counts(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x)


class Remembers(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return self.fc(x)


class WritesOutside(Net):
    def __init__(self):
        super().__init__()
        self.count = torch.zeros(())  # no buffer

    def forward(self, x):
        self.count += 1
        return self.fc(x) * self.count


class Grows(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(1))

    def forward(self, x):
        self.window = torch.zeros(len(self.window) + 1)
        return self.fc(x)


class Gambles(Net):
    def forward(self, x):
        return self.fc(x) * random.random()


class GamblesWithNumpy(Net):
    def forward(self, x):
        return self.fc(x) * float(numpy.random.rand())


class SparseEmbedding(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 12, sparse=True)

    def forward(self, x):
        return self.fc(x + self.table(torch.zeros(6, dtype=torch.long)))


class Fails(Net):
    def forward(self, x):
        return self.fc(x[:, :3])


class Generates(Net):
    generator = torch.Generator()

    def forward(self, x):
        return self.fc(x) + torch.rand(5, generator=self.generator)


def place(model, offset):
    return f"test_failures.py:{type(model).forward.__code__.co_firstlineno + offset}"


MODELS = {
    Branches: ("its control flow depends on a tensor's value at {}", 2, "use torch.where"),
    ReadsItem: ("its control flow depends on a tensor's value at {}", 1, "use torch.where"),
    Compares: ("its control flow depends on a tensor's value at {}", 1, "use torch.where"),
    Counts: ("its forward changes attribute 'calls' of 'Counts'", 0, "keep a tensor in a buffer"),
    Remembers: ("its forward changes attribute 'seen' of 'Remembers'", 0, "keep a tensor in a buffer"),
    WritesOutside: ("it writes to a tensor that is no buffer of the model", 0, "register it as a buffer"),
    Grows: ("its forward gives buffer 'window' another shape or type", 0, "keep them"),
    Gambles: ("its forward draws random numbers outside torch", 0, "draw them with torch"),
    GamblesWithNumpy: ("its forward draws random numbers outside torch", 0, "draw them with torch"),
    SparseEmbedding: ("the gradient of 'table.weight' is sparse", 0, "use dense gradients (sparse=False)"),
}


def training(make_model, make_optimizer=sgd, x=X):
    """Captures with a warning, trains three steps beside eager, and returns the warning's text."""
    torch.manual_seed(0)
    model = make_model()
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = make_optimizer(model), make_optimizer(twin)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = stowage.capture(model, cross_entropy, optimizer, x, Y)
        assert [warning.filename for warning in caught] == [__file__]
        for seed in range(3):
            random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
            loss = step(x, Y)
            random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
            twin_optimizer.zero_grad()
            twin_loss = cross_entropy(twin(x), Y)
            twin_loss.backward()
            twin_optimizer.step()
            assert digest(loss) == digest(twin_loss) and not loss.requires_grad
            assert digest(model.state_dict()) == digest(twin.state_dict())
            assert all(param.grad is None for param in model.parameters())
    assert not step.captured
    assert len(caught) == 1, "said once"
    return str(caught[0].message)


@pytest.mark.parametrize("make_model", MODELS, ids=lambda kind: kind.__name__)
def test_a_model_that_cannot_be_captured(make_model):
    cause, offset, fix = MODELS[make_model]
    model = make_model()
    line = f"cannot capture '{make_model.__name__}': {cause.format(place(model, offset))}; {fix}"
    kept = {name: value for name, value in vars(model).items() if name in ("calls", "seen", "count")}
    before = copy.deepcopy(kept)
    with pytest.raises(stowage.CaptureError) as raised:
        stowage.capture(model, cross_entropy, sgd(model), X, Y, strict=True)
    assert str(raised.value) == line
    assert {name: value for name, value in vars(model).items() if name in ("calls", "seen", "count")} == before
    assert kept == before
    optimizer = sgd if make_model is not SparseEmbedding else lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    assert training(make_model, optimizer) == f"stowage: {line}, or go on as it runs now: unplanned"


def test_a_model_that_raises_says_what_and_where():
    model = Fails()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = stowage.capture(model, cross_entropy, sgd(model), X, Y)
    assert str(caught[0].message) == (
        "stowage: cannot capture 'Fails': tracing it raised RuntimeError: a and b must have same reduction dim, but "
        f"got [6, 3] X [12, 5] at {place(model, 1)}; mend that, or go on as it runs now: unplanned"
    )
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        step(X, Y)


def test_an_explicit_generator():
    model = Generates()
    with pytest.raises(stowage.CaptureError, match="^cannot capture 'Generates': "):
        stowage.capture(model, cross_entropy, sgd(model), X, Y, strict=True)


class MySgd(torch.optim.SGD):
    pass


def with_hook(model):
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


OPTIMIZERS = {
    "RMSprop": (
        lambda m: torch.optim.RMSprop(m.parameters()),
        "optimizer 'RMSprop' is not supported; use torch.optim.SGD, Adam or AdamW",
    ),
    "subclass": (
        lambda m: MySgd(m.parameters()),
        "optimizer 'MySgd' is not supported; use torch.optim.SGD, Adam or AdamW",
    ),
    "fused": (lambda m: sgd(m, fused=True), "option 'fused=True' of optimizer 'SGD' is not supported; leave it out"),
    "foreach": (
        lambda m: sgd(m, foreach=True),
        "option 'foreach=True' of optimizer 'SGD' is not supported; leave it out",
    ),
    "tensor_lr": (
        lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.01)),
        "option 'lr' of optimizer 'Adam' is a tensor; pass a float",
    ),
    "hook": (with_hook, "optimizer 'SGD' has step hooks, which a graph does not call; remove them"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_cannot_be_captured(name):
    make_optimizer, line = OPTIMIZERS[name]
    assert training(Net, make_optimizer) == f"stowage: cannot capture 'Net': {line}, or go on as it runs now: unplanned"


def test_hooks_are_refused():
    model = Net()
    handle = model.fc.register_forward_hook(lambda *_: None)
    with pytest.raises(stowage.CaptureError) as raised:
        stowage.capture(model, cross_entropy, sgd(model), X, Y, strict=True)
    assert str(raised.value) == (
        "cannot capture 'Net': module 'Linear' has hooks, which a graph does not call; remove them"
    )
    handle.remove()
    model.fc.weight.register_hook(lambda grad: grad * 2)
    with pytest.raises(stowage.CaptureError) as raised:
        stowage.capture(model, cross_entropy, sgd(model), X, Y, strict=True)
    assert str(raised.value) == (
        "cannot capture 'Net': parameter 'fc.weight' has hooks, which a graph does not call; remove them"
    )


def test_a_parameter_from_outside_the_model():
    model, extra = Net(), nn.Parameter(torch.ones(5))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.1)
    with pytest.raises(stowage.CaptureError) as raised:
        stowage.capture(model, lambda out, y: cross_entropy(out * extra, y), optimizer, X, Y, strict=True)
    assert str(raised.value) == (
        "cannot capture 'Net': it uses a tensor that requires a gradient and is no parameter of the model; register it"
    )


def test_a_loss_that_is_no_number_and_a_loss_without_gradient():
    model = Net()
    with pytest.raises(stowage.CaptureError) as raised:
        stowage.capture(model, lambda out, y: out, sgd(model), X, Y, strict=True)
    assert str(raised.value) == (
        "cannot capture 'Net': its loss is not a single number; return a tensor with one element from the loss function"
    )
    with pytest.raises(stowage.CaptureError) as raised:
        stowage.capture(model, lambda out, y: out.detach().sum(), sgd(model), X, Y, strict=True)
    assert str(raised.value) == (
        "cannot capture 'Net': its loss depends on no parameter that requires a gradient; check requires_grad"
    )


def test_what_is_no_module_or_no_tensor():
    model = Net()
    with pytest.raises(TypeError) as raised:
        stowage.capture(cross_entropy, cross_entropy, sgd(model), X, Y)
    assert str(raised.value) == "cannot capture 'cross_entropy': it is no torch.nn.Module; pass a module"
    with pytest.raises(TypeError) as raised:
        stowage.capture(model, cross_entropy, sgd(model), [[1.0]], Y)
    assert str(raised.value) == "cannot capture 'Net': inputs and targets must be tensors, found 'float'; pass tensors"


def test_only_some_structures_fail():
    class Either(Net):
        def forward(self, x):
            return Branches.forward(self, x) if self.training else self.fc(x)

    model = Either().eval()
    step = stowage.capture(model, cross_entropy, sgd(model), X, Y)
    step(X, Y)
    assert step.captured
    model.train()
    with pytest.warns(UserWarning, match="its control flow depends on a tensor's value"):
        step(X, Y)
    assert not step.captured
    model.eval()
    step(X, Y)
    assert step.captured


def test_more_structures_than_are_kept(monkeypatch):
    monkeypatch.setattr("stowage.training_step.MAX_GRAPHS", 2)
    model = Net()
    step = stowage.capture(model, cross_entropy, sgd(model), X, Y)
    step(X[:5], Y[:5])
    with pytest.warns(UserWarning) as caught:
        step(X[:4], Y[:4])
        step(X[:3], Y[:3])
    assert [str(warning.message) for warning in caught] == [
        "stowage: cannot capture 'Net': it met more than 2 different structures; pad batches to fewer shapes, "
        "or go on as it runs now: unplanned"
    ]
    assert not step.captured
    step(X, Y)
    assert step.captured and len(step.graphs) == 2
