# SPDX-License-Identifier: Apache-2.0
"""A backward that frees what the forward saved must never free what somebody can still read."""

import pytest
import torch
from backward import assert_same, digest, gradients, inputs, script


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
