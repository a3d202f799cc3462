# SPDX-License-Identifier: Apache-2.0
"""What goes on around a backward that frees early what its forward saved: checkpoints, hooks, threads, tools."""

import copy
import threading

import pytest
import torch
from backward import assert_same, digest, gradients, inputs, script
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    def train(functions) -> list:
        x, w = inputs()
        with set_checkpoint_early_stop(False):  # TorchScript turns its exception into another
            middle = checkpoint(functions[0], x, w, use_reentrant=reentrant)
            checkpoint(functions[1], middle, w, use_reentrant=reentrant).pow(2).sum().backward()
        return gradients(x, w)

    def make() -> list:
        functions = [script(), script("e.tanh()")]
        for _ in range(4):  # while TorchScript still compiles, a second forward saves other tensors than the first
            x, w = inputs()
            functions[1](functions[0](x, w), w).sum().backward()
        return functions

    assert_same(train, make)


def test_hooks_on_gradients():
    def train(function) -> list:
        x, w = inputs()
        seen = []
        middle = (x * 2)
        middle.register_hook(lambda grad: seen.append(grad))
        result = function(middle, w)
        result.register_hook(lambda grad: seen.append(grad))
        result.grad_fn.register_hook(lambda outputs, incoming: seen.extend(incoming) or seen.append(outputs[0]))
        result.retain_grad()
        result.pow(2).sum().backward()
        return gradients(x, w, result) + digest(seen)

    assert_same(train)


def test_gradient_that_the_user_passes_in():
    def train(function) -> list:
        x, w = inputs()
        result = function(x, w)
        gradient = torch.randn_like(result)
        before = digest(gradient)
        result.backward(gradient)
        assert digest(gradient) == before
        return gradients(x, w)

    assert_same(train)


@pytest.mark.parametrize("detached", [False, True])
def test_output_is_its_own_gradient(detached):
    def train(functions) -> list:
        x, w = inputs()
        result = functions(x, w)
        kept = result.detach()
        result.backward(kept if detached else result)
        return gradients(x, w) + digest(kept)

    assert_same(train, lambda: script("e.exp()"))


def test_graph_node_called_by_hand():
    def train(function) -> list:
        x, w = inputs()
        result = function(x, w)
        node = result.grad_fn
        ones = [torch.ones_like(result)] + [None] * (len(node._input_metadata) - 1)
        first = node(*ones)
        again = node(*ones)
        result.sum().backward()
        return gradients(x, w) + digest(first) + digest(again)

    assert_same(train)


def test_gradients_of_some_inputs():
    def train(function) -> list:
        x, w = inputs()
        loss = function(x, w).pow(2).sum()
        only = torch.autograd.grad(loss, w, retain_graph=True)
        loss.backward(inputs=[x])
        return gradients(x) + digest(only)

    assert_same(train)


def test_exception_in_the_backward_then_again():
    """An error below the region: what its backward freed is gone, and a second attempt says so or is right."""

    def train(function) -> list:
        x, w = inputs()
        middle = x * 1
        fails = [True]

        def hook(gradient):
            if fails.pop():
                fails.append(False)
                raise ValueError("once")

        middle.register_hook(hook)
        loss = function(middle, w).pow(2).sum()
        with pytest.raises(ValueError, match="once"):
            loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        y, v = inputs()
        function(y, v).pow(2).sum().backward()
        return gradients(y, v)

    assert_same(train)


def test_activation_that_is_an_input_or_a_view_of_one():
    source = """
def step(x, w):
    flat = x.view(50, 40)
    a = flat.sigmoid()
    b = a.t().contiguous().tanh()
    c = b.t()
    return (c.exp() * flat).sin() * w[0], flat, c
"""

    def train(function) -> list:
        x, w = inputs()
        batch = (x * 1)
        result, flat, c = function(batch, w)
        del c
        kept = flat.detach()
        del flat
        result.sum().backward()
        return gradients(x, w) + digest([kept, batch])

    assert_same(train, lambda: torch.jit.CompilationUnit(source).step)


def test_parameters_and_buffers_stay():
    def make():
        class Net(nn.Module):  # here, so that TorchScript compiles it anew
            def __init__(self):
                super().__init__()
                self.first, self.norm, self.last = nn.Linear(50, 30), nn.BatchNorm1d(30), nn.Linear(30, 30)

            def forward(self, x):
                for _ in range(2):
                    x = torch.relu(self.norm(self.first(x)))
                    x = torch.nn.functional.pad(self.last(x), [0, 20]).sigmoid()
                return x

        torch.manual_seed(0)
        net = torch.jit.script(Net())
        return net, torch.optim.SGD(net.parameters(), lr=0.1)

    def train(pair) -> list:
        net, optimizer = pair
        optimizer.zero_grad()
        loss = net(torch.randn(40, 50)).pow(2).sum()
        loss.backward()
        optimizer.step()
        return digest([loss, *net.state_dict().values(), *(p.grad for p in net.parameters())])

    assert_same(train, make)


def test_two_threads_that_train_at_once():
    def train(functions) -> list:
        outcomes = [None, None]
        given = [inputs(), inputs()]  # here, since threads share the generator

        def work(index: int):
            x, w = given[index]
            functions[index](x, w).pow(2).sum().backward()
            outcomes[index] = gradients(x, w)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

    assert_same(train, lambda: [script(), script("e.tanh()")])


def test_evaluation_between_forward_and_backward():
    def train(function) -> list:
        x, w = inputs()
        loss = function(x, w).pow(2).sum()
        with torch.no_grad():
            quiet = function(x, w)
        loss.backward()
        return gradients(x, w) + digest(quiet)

    assert_same(train)


def test_anomaly_mode():
    def train(function) -> list:
        x, w = inputs()
        with torch.autograd.detect_anomaly(check_nan=True):
            function(x, w).pow(2).sum().backward()
        return gradients(x, w)

    assert_same(train)


def test_profiler_with_shapes_and_memory():
    def train(function) -> list:
        x, w = inputs()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True,
                                    profile_memory=True, with_stack=False):
            function(x, w).pow(2).sum().backward()
        return gradients(x, w)

    assert_same(train)


def test_deep_copy_of_the_result():
    def train(function) -> list:
        x, w = inputs()
        result = function(x, w)
        kept = copy.deepcopy(result.detach())
        result.backward(torch.ones_like(result))
        return gradients(x, w) + digest(kept)

    assert_same(train)
