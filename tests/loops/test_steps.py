# SPDX-License-Identifier: Apache-2.0
"""What `stowage.step()` and `stowage.mark_step()` promise, whatever a loop does within."""

import threading

import pytest
import stowage
import torch
from loops.modes import Seen, batch, everything, sgd
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 10


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 10))


def steps(device: str = "cpu") -> dict:
    """What status says of the steps on a device."""
    return next(each for each in stowage.status()["steps"] if each["device"] == device)


def planned(min_runs: int = 3) -> dict:
    """The phase that was followed most, and without a miss the last time."""
    phase = max((phase for phase in steps()["phases"] if phase["state"] == "planned"), key=lambda phase: phase["runs"])
    assert phase["runs"] >= min_runs, phase
    return phase


def misses(phase: dict) -> int:
    return sum(count["allocations"] for count in phase["last"]["misses"].values())


def turn(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> torch.Tensor:
    x, y = batch(number)
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def train(step=stowage.step, count: int = STEPS, between=lambda number: None, within=lambda number, model: None) -> Seen:
    model = net()
    optimizer, seen = sgd(model), Seen(model)
    for number in range(count):
        with step():
            loss = turn(model, optimizer, number)
            seen.add(within(number, model))
        between(number)
        seen.add(loss, *everything(model, optimizer))
    return seen


def assert_same(**how) -> None:
    unplanned = train(**how)
    assert stowage.status()["steps"] == [] or steps()["steps"] == 0
    stowage.enable()
    assert train(**how) == unplanned


def test_a_loop_with_steps():
    assert_same()
    phase = planned(min_runs=6)
    assert misses(phase) == 0 and phase["last"]["hits"]["allocations"] == phase["allocations"]
    assert phase["arena_bytes"] == phase["arena_bound_bytes"]


def test_a_loop_with_marks():
    class Marked:
        def __enter__(self):
            stowage.mark_step()

        def __exit__(self, *_):
            pass

    unplanned = train(step=Marked)
    stowage.enable()
    assert train(step=Marked) == unplanned
    assert misses(planned(min_runs=5)) == 0


def test_steps_do_not_nest_and_the_outer_one_goes_on():
    stowage.enable()
    with stowage.step():
        with pytest.raises(ValueError, match="cannot open a step: this thread has one open; end it first"):
            stowage.step().__enter__()
        a = torch.ones(1000)
    assert a.sum() == 1000
    with pytest.raises(ValueError, match="cannot end a step: this thread has none open"):
        torch.ops.stowage.end_step(True)


@pytest.mark.parametrize("device", ["gpu", "cpu:x", "meta"])
def test_a_device_that_is_none(device):
    stowage.enable()
    with pytest.raises(ValueError, match=f"cannot open a step on '{device}': use 'cpu', 'cuda' or 'cuda:N'"):
        stowage.step(device).__enter__()


def test_an_exception_within_a_step():
    def run() -> Seen:
        model = net()
        optimizer, seen = sgd(model), Seen(model)
        for number in range(14):
            try:
                with stowage.step():
                    loss = turn(model, optimizer, number)
                    if number % 5 == 4:
                        raise KeyError(number)
            except KeyError:
                seen.add(number)
            seen.add(loss, *everything(model, optimizer))
        return seen

    unplanned = run()
    stowage.enable()
    assert run() == unplanned
    planned()


def test_tensors_that_are_kept():
    kept = []

    def within(number, model):
        tensor = model(torch.full((8, 20), float(number)))
        kept.append((tensor, tensor.detach()[2:4], tensor.clone()))
        return None

    unplanned = train(within=within)
    stowage.enable()
    before = len(kept)
    assert train(within=within) == unplanned
    for (tensor, view, copy), (again, its_view, its_copy) in zip(kept[:before], kept[before:]):
        assert torch.equal(again, its_copy) and torch.equal(tensor, again) and torch.equal(view, its_view)
    assert steps()["planned_bytes"] > 0


def test_stowage_is_switched_off_within_a_step():
    unplanned = train()
    stowage.enable()

    def within(number, model):
        if number == 6:
            stowage.disable()

    assert train(within=within) == unplanned


def test_more_and_fewer_allocations_cost_a_few_of_them():
    extra = []

    def within(number, model):
        if number == 7:
            extra.append(torch.ones(5000))

    assert_same(within=within)
    phase = planned(min_runs=5)
    assert phase["total"]["misses"]["unplanned"]["allocations"] <= 3
    assert misses(phase) == 0


def test_gradients_of_another_thread_are_its_own():
    """A thread without a step trains meanwhile."""
    stop = threading.Event()
    seen_elsewhere = []
    model = nn.Linear(64, 64)

    def elsewhere():
        while not stop.is_set():
            model.zero_grad()
            model(torch.ones(64, 64)).sum().backward()
            seen_elsewhere.append(model.weight.grad.sum().item())

    unplanned = train()
    stowage.enable()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        assert train() == unplanned
    finally:
        stop.set()
        thread.join()
    assert len(set(seen_elsewhere)) == 1
    assert misses(planned()) == 0


def test_two_threads_have_steps():
    def run(results: list) -> None:
        results.append(train_alone())

    def train_alone() -> list:
        generator = torch.Generator().manual_seed(1)
        model = nn.Linear(64, 64)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.01)
        seen = []
        for _ in range(8):
            with stowage.step():
                model.zero_grad()
                loss = model(torch.randn(32, 64, generator=generator)).pow(2).sum()
                loss.backward()
            seen.append((loss.item(), model.weight.grad.clone()))
        return [[loss, gradient.numpy().tobytes()] for loss, gradient in seen]

    expected = train_alone()
    stowage.enable()
    results: list = []
    threads = [threading.Thread(target=run, args=(results,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected, expected]


def test_a_thread_that_ends_within_a_step_leaves_the_device_to_others():
    stowage.enable()
    thread = threading.Thread(target=lambda: stowage.step().__enter__())
    thread.start()
    thread.join()
    train()
    planned(min_runs=5)


def scripted_net() -> torch.jit.ScriptModule:
    class Net(nn.Module):  # here, so that TorchScript compiles it anew
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            hidden = torch.sigmoid(hidden) * hidden
            return self.last((hidden.tanh() + hidden).mean(dim=[2, 3]))

    torch.manual_seed(0)
    return torch.jit.script(Net())


def test_scripted_loops_have_steps_without_a_mark():
    def run() -> Seen:
        model = scripted_net()
        optimizer, seen = sgd(model), Seen(model)
        for number in range(16):
            torch.manual_seed(number)
            loss = cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.randint(10, (4,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % 4 == 3:
                model.eval()
                with torch.no_grad():
                    seen.add(model(torch.ones(2, 3, 32, 32)))
                model.train()
            seen.add(loss, *everything(model, optimizer))
        return seen

    unplanned = run()
    stowage.enable()
    assert run() == unplanned
    assert planned(min_runs=3)["total"]["hits"]["allocations"] > 50


def test_a_loop_that_opens_steps_gets_no_others():
    model = scripted_net()
    optimizer = sgd(model)
    stowage.enable()
    for number in range(10):
        with stowage.step():
            optimizer.zero_grad()
            model(torch.ones(4, 3, 32, 32)).sum().backward()
            optimizer.step()
    assert steps()["steps"] == 10


def test_scripted_evaluation_with_gradients_on_opens_no_endless_step():
    model = scripted_net()
    stowage.enable()
    for _ in range(200):
        model(torch.ones(4, 3, 32, 32))
    assert steps()["steps"] >= 2
