# SPDX-License-Identifier: Apache-2.0
"""A backward that frees what the forward saved must never free what somebody can still read."""

import copy
import threading

import pytest
import stowage
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from twins import digest as digest_of

STEPS = 8
#: Its backward frees activations in the middle of the graph: sigmoid, tanh and exp save their results.
CHAIN = """
def step(x, w):
    a = (x * w).sin()
    b = a.sigmoid()
    c = b.tanh()
    d = c.exp()
    e = d.cos() * b
    return {returned}
"""


def script(returned: str = "e"):
    return torch.jit.CompilationUnit(CHAIN.format(returned=returned)).step


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(40, 50, requires_grad=True), torch.randn(50, requires_grad=True)


def digest(value) -> list:
    return [digest_of(value)]


def gradients(*tensors: torch.Tensor) -> list:
    return digest([tensor.grad for tensor in tensors])


def names() -> set[str]:
    return {region["name"] for region in stowage.status()["regions"]}


def emptied_bytes(before: set[str]) -> int:
    """By the newest run of each region that is planned, of those that are new; some was followed three times."""
    alive = [region for region in stowage.status()["regions"] if region["alive"] and region["name"] not in before]
    phases = [phase for region in alive for phase in region["phases"] if phase["state"] == "planned"]
    assert any(phase["runs"] >= 3 for phase in phases), alive
    return sum(phase["last_emptied_bytes"] for phase in phases)


def assert_same(train, make=script) -> int:
    """Trains planned as unplanned, byte for byte. Returns what the last backward freed early."""

    def steps() -> list:
        function = make()
        seen = []
        for step in range(STEPS):
            torch.manual_seed(step)
            seen.append(train(function))
        return [seen, function]

    unplanned = steps()
    stowage.enable()
    before = names()
    planned = steps()
    assert planned[0] == unplanned[0]
    return emptied_bytes(before)


def test_plain_backward_frees_the_activations():
    def train(function) -> list:
        x, w = inputs()
        function(x, w).pow(2).sum().backward()
        return gradients(x, w)

    assert assert_same(train) >= 4 * 40 * 50 * 4  # b, c, d and one of cos; not what x and w hold


def test_retained_graph_is_used_again():
    """Case 9: the same backward twice."""

    def train(function) -> list:
        x, w = inputs()
        loss = function(x, w).pow(2).sum()
        loss.backward(retain_graph=True)
        first = gradients(x, w)
        loss.backward(retain_graph=True)
        return first + gradients(x, w)

    assert assert_same(train) <= 40 * 50 * 4  # the incoming gradient at most


def test_retained_graph_is_freed_by_the_last_backward():
    def train(function) -> list:
        x, w = inputs()
        loss = function(x, w).pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(x, w)

    assert assert_same(train) >= 4 * 40 * 50 * 4


def test_double_backward():
    """Case 9: through the gradients of gradients."""

    def train(function) -> list:
        x, w = inputs()
        loss = function(x, w).pow(2).sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (slope.pow(2).sum() + loss).backward()
        return gradients(x, w) + digest(slope)

    assert_same(train)


def test_two_forwards_then_both_backwards():
    """Case 9: each backward has its own activations."""

    def train(function) -> list:
        x, w = inputs()
        losses = [function(x, w).sum(), function(x * 2, w).pow(2).sum()]
        for loss in losses:
            loss.backward()
        return gradients(x, w)

    assert assert_same(train) >= 3 * 40 * 50 * 4


def test_two_losses_of_one_forward():
    def train(function) -> list:
        x, w = inputs()
        result = function(x, w)
        first, second = result.sum(), result.pow(3).sum()
        first.backward(retain_graph=True)
        second.backward()
        return gradients(x, w)

    assert assert_same(train) >= 3 * 40 * 50 * 4


def test_backward_twice_without_retaining_raises():
    def train(function) -> list:
        x, w = inputs()
        loss = function(x, w).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            loss.backward()
        return gradients(x, w)

    assert_same(train)


@pytest.mark.parametrize(
    "kept",
    ["b", "c", "d", "b.detach()", "c[3:7]", "d.t()", "b.view(50, 40)", "d.flatten()[::3]"],
)
def test_user_keeps_an_activation(kept):
    """Case 9: or a view of one, or it without its history."""

    def train(function) -> list:
        x, w = inputs()
        result, held = function(x, w)
        before = digest(held)
        result.pow(2).sum().backward()
        assert digest(held) == before
        return gradients(x, w) + before

    assert_same(train, lambda: script(f"e, {kept}"))


VIEWS = {
    "detached": lambda t: t.detach(),
    "slice": lambda t: t[2:],
    "transposed": lambda t: t.t().detach(),
    "numpy": lambda t: t.data.numpy(),
    "storage": lambda t: t.untyped_storage(),
    "dlpack": lambda t: torch.utils.dlpack.to_dlpack(t.detach()),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_user_keeps_only_a_view_of_an_activation(view):
    """The tensor itself is gone before the backward."""

    def look(kept) -> list:
        if isinstance(kept, torch.UntypedStorage):
            return digest(torch.tensor([], dtype=torch.float32).set_(kept))
        return digest(kept if isinstance(kept, torch.Tensor) else torch.as_tensor(kept) if hasattr(kept, "shape")
                      else torch.utils.dlpack.from_dlpack(kept))

    def train(function) -> list:
        x, w = inputs()
        result, activation = function(x, w)
        kept = view(activation)
        del activation
        result.pow(2).sum().backward()
        return gradients(x, w) + look(kept)

    assert_same(train, lambda: script("e, c"))


def test_user_keeps_the_output_and_the_batch():
    def train(function) -> list:
        x, w = inputs()
        batch = x * 1
        result = function(batch, w)
        before = digest([batch, result])
        result.sum().backward()
        assert digest([batch, result]) == before
        return gradients(x, w) + before

    assert_same(train)


def test_batch_that_nobody_keeps():
    def train(function) -> list:
        x, w = inputs()
        function(x * 1, w).pow(2).sum().backward()
        return gradients(x, w)

    assert_same(train)


def test_saved_tensor_hooks_that_keep_what_they_pack():
    """What unpacking returns is the user's, though it looks like a capture of which nobody else knows."""

    def train(function) -> list:
        x, w = inputs()
        packed = []

        def pack(tensor):
            packed.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = function(x, w).pow(2).sum()
        before = digest([tensor.detach() for tensor in packed])
        loss.backward()
        assert digest([tensor.detach() for tensor in packed]) == before
        return gradients(x, w) + before

    assert_same(train)


@pytest.mark.parametrize("hooked_first", [True, False])
def test_hooks_around_one_of_two_modules(hooked_first):
    """An activation that passes from one to the other is saved by both, once with hooks."""

    def train(functions) -> list:
        x, w = inputs()
        packed = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t)
        middle = None
        for index, function in enumerate(functions):
            if (index == 0) == hooked_first:
                with hooks:
                    middle = function(x if middle is None else middle, w)
            else:
                middle = function(x if middle is None else middle, w)
        loss = middle.pow(2).sum()
        del middle
        before = digest([tensor.detach() for tensor in packed])
        loss.backward()
        assert digest([tensor.detach() for tensor in packed]) == before
        return gradients(x, w) + before

    assert_same(train, lambda: [script(), script("e.tanh()")])


def test_saved_on_the_cpu():
    def train(function) -> list:
        x, w = inputs()
        with torch.autograd.graph.save_on_cpu():
            loss = function(x, w).sum()
        loss.backward()
        return gradients(x, w)

    assert_same(train)


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
