# SPDX-License-Identifier: Apache-2.0
"""A write and a read of one storage keep their order, also where the profiled run did not show that they share it."""

from typing import Callable, Iterable

import numpy
import pytest
import stowage
import torch
from planning import compile, digest, newest_region, plan_text, run
from torch import nn

#: Whether in this call the two share memory: not in those that are profiled, nor in the first planned ones.
SHARED = [False] * 6 + [True] * 5 + [False]
CALLS = len(SHARED)


def vector() -> torch.Tensor:
    return torch.randn(1000)


def program(inputs: str, before: str, written: str, read: str) -> str:
    """`read` after `written` has been written. To have it the other way round pays: it frees `a` before the peak."""
    return f"""
def step(q, {inputs}):
    a = torch.cat([q, q]).exp()
    {before}
    huge = torch.cat([q] * 16).tanh() + a.sum()
    {written}.add_(huge[:1000])
    r = ({read} * a[:1000]).sum()
    return r, x.sum()
"""


def assert_same(source: str, make_batches: Callable[[], Iterable[tuple]]) -> list[str]:
    """Planned equals unplanned for the batches, one a call; returns the states of the phases."""

    def calls(function) -> list:
        batches = iter(make_batches())
        return run(function, lambda: next(batches), CALLS)

    unplanned = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == unplanned
    return [phase["state"] for phase in newest_region()["phases"]]


def pairs() -> Iterable[tuple]:
    return ((vector(), vector()) for _ in range(CALLS))


def test_read_moves_before_the_write_where_they_share_nothing():
    source = program("x, y", "y = y", "x", "y")
    assert assert_same(source, lambda: ((vector(), vector(), vector()) for _ in range(CALLS))) == ["planned"]
    plan = plan_text()
    assert plan.index("aten::mul(%y.1") < plan.index("aten::add_(%x.1")


@pytest.mark.parametrize(("written", "read"), [("y", "parts[0]"), ("parts[0]", "y")])
def test_element_of_a_list_at_an_index_from_data(written, read):
    source = program("x, n", "parts = [x.sin(), x.cos()]\n    y = parts[int(n)]", written, read)
    assert assert_same(source, lambda: ((vector(), vector(), torch.tensor(int(not t))) for t in SHARED)) == ["planned"]


@pytest.mark.parametrize("copy", ["contiguous()", "reshape(-1)[:1000].unsqueeze(0)"])
def test_copy_that_is_a_view_at_another_size(copy):
    source = program("x, n", f"c = x.expand(int(n), 1000).{copy}", "x", "c[0]")
    batches = lambda: ((vector(), torch.randn(1, 1000), torch.tensor(1 if t else 2)) for t in SHARED)
    assert assert_same(source, batches) == ["planned"]


@pytest.mark.parametrize(
    ("appended", "written", "read"),
    [("x", "x", "torch.stack(found)[1]"), ("x * i", "found[1]", "torch.stack(found)[1]"), ("x", "found[0]", "found[1]")],
)
def test_list_that_a_loop_fills(appended, written, read):
    loop = f"found: List[Tensor] = []\n    for i in range(int(x.size(0)) // 500):\n        found.append({appended})"
    assert assert_same(program("x", loop, written, read), pairs) == ["planned"]


def test_dict_that_a_branch_fills():
    branch = 'found: Dict[str, Tensor] = {}\n    if float(x.sum()) < 1e9:\n        found["a"] = x'
    assert assert_same(program("x", branch, "x", "torch.stack(list(found.values()))[0]"), pairs) == ["planned"]


@pytest.mark.parametrize(
    ("inputs", "x", "y", "wrap"),
    [
        ("d: Dict[str, Tensor]", 'd["x"]', 'd["y"]', lambda x, y: {"x": x, "y": y}),
        ("d: List[Tensor]", "d[0]", "d[1]", lambda x, y: [x, y]),
        ("d: Tuple[Tensor, Tensor]", "d[0]", "d[1]", lambda x, y: (x, y)),
        ("d: List[Dict[str, Tensor]]", 'd[0]["x"]', 'd[1]["x"]', lambda x, y: [{"x": x}, {"x": y}]),
    ],
    ids=["dict", "list", "tuple", "nested"],
)
def test_one_tensor_twice_in_a_container(inputs, x, y, wrap):
    def batches() -> Iterable[tuple]:
        for twice in SHARED:
            first, second = vector(), vector()
            yield vector(), wrap(first, first if twice else second)

    source = program(inputs, f"x = {x}\n    y = {y}", "x", "y")
    assert assert_same(source, batches) == ["planned", "planned"]


@pytest.mark.parametrize("shift", [0, 100])
def test_one_array_in_two_storages(shift):
    """`torch.from_numpy` makes a storage each time: only the addresses tell that the memory is one."""

    def batches() -> Iterable[tuple]:
        for shared in SHARED:
            array = numpy.random.default_rng(0).standard_normal(1200, dtype="float32")
            other = array if shared else array.copy()
            yield vector(), torch.from_numpy(other[:1000]), torch.from_numpy(array[shift : shift + 1000])

    assert assert_same(program("x, y", "y = y", "x", "y"), batches) == ["planned", "unplanned"]
    why = stowage.status()["regions"][-1]["phases"][1]["why"]
    assert why == "'x.1' and 'y.1' share memory, but not a storage"


def script_holder() -> torch.jit.ScriptModule:
    class Holder(nn.Module):  # here, so that TorchScript compiles it anew
        def __init__(self):
            super().__init__()
            self.x, self.y = vector(), vector()

        def forward(self, q):
            a = torch.cat([q, q]).exp()
            huge = torch.cat([q, q, q, q, q, q, q, q, q, q, q, q, q, q, q, q]).tanh() + a.sum()
            self.x.add_(huge[:1000])
            return (self.y * a[:1000]).sum(), self.x + 1

    torch.manual_seed(0)
    return torch.jit.script(Holder())


def test_attributes_that_become_one_tensor():
    def calls(module) -> list:
        seen = run(module, lambda: (vector(),))
        module.y = module.x
        return seen + run(module, lambda: (vector(),))

    unplanned = calls(script_holder())
    stowage.enable()
    module = script_holder()
    assert calls(module) == unplanned
    assert [phase["state"] for phase in newest_region()["phases"]] == ["planned", "planned"]


def script_rebinder() -> torch.jit.ScriptModule:
    class Rebinder(nn.Module):
        """Its attribute is another tensor after each call."""

        def __init__(self):
            super().__init__()
            self.last = vector()

        def forward(self, q):
            a = torch.cat([q, q]).exp()
            old = self.last
            if float(q.sum()) < 1e9:
                self.last = old.clone() * 2
            huge = torch.cat([q, q, q, q, q, q, q, q, q, q, q, q, q, q, q, q]).tanh() + a.sum()
            self.last.add_(huge[:1000])
            return (self.last * a[:1000]).sum(), old.sum()

    torch.manual_seed(0)
    return torch.jit.script(Rebinder())


def test_attribute_that_a_step_sets():
    unplanned = script_rebinder()
    expected = run(unplanned, lambda: (vector(),))
    stowage.enable()
    module = script_rebinder()
    assert run(module, lambda: (vector(),)) == expected
    assert digest(module.last) == digest(unplanned.last)
    assert [phase["state"] for phase in newest_region()["phases"]] == ["planned"]
