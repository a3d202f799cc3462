# SPDX-License-Identifier: Apache-2.0
"""What the profiled run did not show costs memory, never a wrong number: slots that stay busy, sizes that change, ops
that hold what they get."""

import ctypes
import gc
import threading
from typing import Any, Callable

import pytest
import stowage
import torch
from planning import CALLS, assert_same, compile, digest, newest_region, planned_phase, run
from torch import nn

LIBRARY = torch.library.Library("stowage_unforeseen", "DEF")


class Behaviour:
    """What the custom ops below do in the present call."""

    def __init__(self):
        self.kept: list[torch.Tensor] = []
        self.keeps = False
        self.returns_input = False
        self.inner: Callable[[], Any] = lambda: None
        self.seen: tuple[int, int] = (0, 0)
        self.bytes_seen = b""


behaviour = Behaviour()


def keeper(x: torch.Tensor) -> torch.Tensor:
    if behaviour.keeps:
        behaviour.kept.append(x)
    return x * 2


def caller(x: torch.Tensor) -> torch.Tensor:
    behaviour.inner()
    return x + 1


def remember_address(x: torch.Tensor) -> torch.Tensor:
    behaviour.seen = (x.data_ptr(), x.nbytes)
    return x + 1


def look_there(x: torch.Tensor) -> torch.Tensor:
    behaviour.bytes_seen = ctypes.string_at(*behaviour.seen)
    return x + 1


for name, function in {
    "keeper": keeper,
    "caller": caller,
    "liar": lambda x: x if behaviour.returns_input else x.clone(),
    "remember_address": remember_address,
    "look_there": look_there,
}.items():
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    LIBRARY.impl(name, function, "CPU")


@pytest.fixture(autouse=True)
def behave():
    behaviour.__init__()


def vector() -> torch.Tensor:
    return torch.randn(1000)


def source(op: str) -> str:
    return f"""
def step(x):
    a = torch.cat([x, x]).exp()
    b = torch.ops.stowage_unforeseen.{op}(a)
    c = torch.cat([b, b, a]).sin()
    d = torch.cat([c, c]).cos()
    return d.sum() + a.sum(), b.sum()
"""


def calls_with(function: Callable, **in_these_calls: set[int]) -> list:
    """Runs `function`; sets each attribute of `behaviour` in the calls named only."""
    seen = []
    for call in range(12):
        for attribute, calls in in_these_calls.items():
            setattr(behaviour, attribute, call in calls)
        torch.manual_seed(call)
        with torch.no_grad():
            seen.append(digest(function(vector())))
    return seen + [digest(behaviour.kept)]


def test_tensor_that_an_op_keeps_from_some_call_on_keeps_its_memory():
    expected = calls_with(compile(source("keeper")), keeps={6, 8})
    behaviour.kept.clear()
    stowage.enable()
    function = compile(source("keeper"))
    assert calls_with(function, keeps={6, 8}) == expected
    assert planned_phase()["last"]["misses"]["busy"]["allocations"] > 0  # what is kept lies where others belong
    del function
    gc.collect()
    stowage.disable()
    assert stowage.status()["arena_bytes"] == 0
    assert digest(behaviour.kept) == expected[-1]  # the retired arena lives as long as they do


def test_op_that_says_its_result_is_new_and_returns_its_input():
    expected = calls_with(compile(source("liar")), returns_input={6, 8, 9})
    stowage.enable()
    function = compile(source("liar"))
    assert calls_with(function, returns_input={6, 8, 9}) == expected
    total = planned_phase()["total"]
    assert total["late_frees"] >= 3


def script_hoarder() -> torch.jit.ScriptModule:
    class Hoarder(nn.Module):  # here, so that TorchScript compiles it anew
        def __init__(self):
            super().__init__()
            self.kept = torch.zeros(2000)

        def forward(self, x, n):
            a = torch.cat([x, x]).exp()
            b = a.sin()
            if float(n) > 0:
                self.kept = b
            c = torch.cat([b, b, a]).sin()
            d = torch.cat([c, c]).cos()
            return d.sum() + a.sum(), b.sum()

    return torch.jit.script(Hoarder())


def test_attribute_that_a_branch_sets_keeps_its_memory():
    def calls(module) -> list:
        seen = []
        for call in range(12):
            torch.manual_seed(call)
            with torch.no_grad():
                seen.append(digest(module(vector(), torch.tensor(float(call in (6, 8, 9))))))
            seen.append(digest(module.kept))
        return seen

    expected = calls(script_hoarder())
    stowage.enable()
    module = script_hoarder()
    assert calls(module) == expected
    assert planned_phase()["total"]["misses"]["busy"]["allocations"] > 0


def test_freed_memory_is_poisoned():
    """Else the tests that compare bytes would not see a read of what is freed."""
    program = """
def step(x):
    a = x.exp()
    b = torch.ops.stowage_unforeseen.remember_address(a)
    c = b.sum()
    d = torch.ops.stowage_unforeseen.look_there(c)
    e = (b + d).cos()
    return e.sum()
"""
    stowage.enable()
    function = compile(program)
    run(function, lambda: (vector(),))
    assert planned_phase()["last"]["hits"]["allocations"] > 3
    poison = 3000 * b"\xff"  # small results may have come to lie in the first bytes
    assert behaviour.bytes_seen.endswith(poison)
    stowage.set_option("poison", "0")
    run(function, lambda: (vector(),))
    assert not behaviour.bytes_seen.endswith(poison)


# --- runs within and beside a run -------------------------------------------------------------------------------------

CHAIN = """
def step(x):
    a = torch.cat([x, x]).exp()
    b = a.sin() + a
    c = torch.cat([b, a]).cos()
    return c.sum() + b
"""


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_run_while_another_holds_the_arena_is_unplanned_and_right(in_thread):
    stowage.enable()
    inner, outer = compile(CHAIN), compile(source("caller"))
    x = torch.linspace(0, 1, 1000)
    with torch.no_grad():
        expected = [digest(inner(x)) for _ in range(6)][-1]
        expected_outer = [digest(outer(x)) for _ in range(6)][-1]
    before = [region["runs_as_is"] for region in stowage.status()["regions"][-2:]]
    found = []

    def run_inner() -> None:
        with torch.no_grad():
            found.append(digest(inner(x)))

    def run_inner_in_thread() -> None:
        thread = threading.Thread(target=run_inner)
        thread.start()
        thread.join()

    behaviour.inner = run_inner_in_thread if in_thread else run_inner
    with torch.no_grad():
        assert digest(outer(x)) == expected_outer
    assert found == [expected]
    after = [region["runs_as_is"] for region in stowage.status()["regions"][-2:]]
    assert [now - then for now, then in zip(after, before)] == [1, 0]


def test_disable_and_enable_go_on_with_the_plans():
    stowage.enable()
    function = compile(CHAIN)
    expected = run(function, lambda: (vector(),))
    before = newest_region()
    stowage.disable()
    assert run(function, lambda: (vector(),)) == expected
    assert newest_region()["runs_as_is"] == before["runs_as_is"] + CALLS
    stowage.enable()
    assert run(function, lambda: (vector(),)) == expected
    after = newest_region()
    assert after["phases"][0]["runs"] == before["phases"][0]["runs"] + CALLS
    assert after["runs_profiled"] == before["runs_profiled"]


# --- sizes, storages, containers --------------------------------------------------------------------------------------

PROGRAMS = {
    "resized and written through out=": """
    y = torch.empty([0])
    y.resize_([2000])
    y.fill_(1.5)
    v = y.view(20, 100)
    v.add_(1)
    out = torch.empty([0])
    torch.add(x, y[:1000], out=out)
    z = out.sin()
    out.mul_(2)
    w = torch.cat([z, out, y]).exp()
    return w.sum(), z, out
""",
    "shapes changed in place": """
    a = x.exp().view(20, 50)
    a.t_()
    b = a * 2
    a.unsqueeze_(0)
    c = a.squeeze_(0)
    a.transpose_(0, 1)
    return a + 1, b.sum(), c.size(0)
""",
    "lists out, views that no schema tells": """
    y = x.view(10, 100).exp()
    parts = torch.unbind(y * 2)
    more = torch.chunk(y.sin(), 3)
    pair = torch.broadcast_tensors([y[2], y.cos()])
    pair[1].add_(1)
    turned = torch.einsum("ij->ji", [y])
    y.mul_(2)
    return parts, [more[0], more[1] * 2], pair[0] + pair[1], turned
""",
    "sizes from data": """
    mask = x > 0
    a = x[mask]
    b = torch.cat([a, a]).exp()
    c = x.exp().sin()
    d = torch.cat([c, c, c]).cos().sum()
    return b.sum() + d, c + 1, a.size(0)
""",
}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "sizes from data"])
@pytest.mark.parametrize("keep", [False, True])
def test_program(name, keep):
    assert_same("\ndef step(x):" + PROGRAMS[name], lambda: (vector(),), keep=keep)


def test_sizes_from_data_are_served_where_they_fit():
    """Planned for 500 positive numbers; then come fewer, and more."""
    counts = [500] * 6 + [499, 300, 700, 1000, 0, 500]

    def calls(function) -> list:
        make = iter(counts)
        return run(function, lambda: (torch.where(torch.arange(1000) < next(make), 1.0, -1.0) * vector().abs(),), 12)

    expected = calls(compile("\ndef step(x):" + PROGRAMS["sizes from data"]))
    stowage.enable()
    function = compile("\ndef step(x):" + PROGRAMS["sizes from data"])
    assert calls(function) == expected
    assert planned_phase()["total"]["misses"]["too_large"]["allocations"] >= 2


def test_tensor_without_a_storage_is_not_planned_and_says_why():
    sparse = "\ndef step(x):\n    s = x.to_sparse()\n    d = s.to_dense() * 2\n    return d.sum() + x.exp(), d\n"
    expected = run(compile(sparse), lambda: (vector(),))
    stowage.enable()
    function = compile(sparse)
    assert run(function, lambda: (vector(),)) == expected
    phase = newest_region()["phases"][0]
    assert (phase["state"], phase["why"]) == ("unplanned", "'s.1' is a tensor without a storage")


def test_branch_that_returns_an_undefined_tensor():
    """As the backward of a graph does where a gradient is not needed."""
    text = """
graph(%x : Tensor, %n : Tensor):
  %one : int = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %flag : bool = aten::Bool(%n)
  %a : Tensor = prim::If(%flag)
    block0():
      %e : Tensor = aten::exp(%x)
      -> (%e)
    block1():
      %z : Tensor = prim::AutogradZero()
      -> (%z)
  %b : Tensor = aten::sin(%x)
  %c : Tensor = prim::AutogradAdd(%a, %b)
  %d : Tensor = aten::cos(%c)
  %s : Tensor = aten::sum(%d, %none)
  return (%s)
"""

    def calls() -> list:
        function = torch._C._create_function_from_graph("step", torch._C.parse_ir(text))
        flags = iter([1] * 6 + [0, 0, 1, 0])
        return [run(function, lambda: (vector(), torch.tensor(next(flags))), 10), function]

    expected = calls()[0]
    stowage.enable()
    assert (planned := calls())[0] == expected
    assert planned_phase()["last"]["hits"]["allocations"] > 0 and planned[1] is not None


@pytest.mark.parametrize(
    "body", ["return x", "return x, x", "y = x.t()\n    return y, x", "y = x.add_(1).mul_(2).neg_().sub_(3)\n    return y"]
)
def test_programs_that_allocate_nothing(body):
    stowage.set_option("min_ops", "1")
    program = f"\ndef step(x):\n    {body}\n"
    expected = run(compile(program), lambda: (vector(),), keep=True)
    stowage.enable()
    function = compile(program)
    assert run(function, lambda: (vector(),), keep=True) == expected


# --- signatures -------------------------------------------------------------------------------------------------------


def test_each_layout_type_and_thread_count_has_a_plan():
    program = """
def step(x):
    a = torch.cat([x, x]).exp()
    b = a.contiguous() * 2
    c = b.sum(0) + a
    return c.sum() + b, a.t()
"""
    kinds: list[Callable] = [
        lambda: (torch.randn(20, 30),),
        lambda: (torch.randn(30, 20).t(),),
        lambda: (torch.randn(20, 30, dtype=torch.float64),),
        lambda: (torch.randn(40, 30)[::2],),
    ]
    expected = [run(compile(program), kind) for kind in kinds]
    stowage.enable()
    function = compile(program)
    assert [run(function, kind) for kind in kinds] == expected
    try:
        torch.set_num_threads(2)
        assert run(function, kinds[0]) == expected[0]
    finally:
        torch.set_num_threads(1)
    phases = newest_region()["phases"]
    assert [phase["state"] for phase in phases] == ["planned"] * 5


def test_text_lists_of_sizes_and_none_choose_a_plan():
    program = """
def step(x, how: str, sizes: List[int], pick: Optional[int]):
    a = torch.cat([x, x]).exp()
    if how == "sum":
        b = a.view(sizes).sum(0)
    else:
        b = a.view(sizes).mean(1)
    if pick is not None:
        b = b[:pick]
    c = torch.cat([b, b]).sin()
    return c.cos()
"""
    kinds = [("sum", [20, 100], 3), ("mean", [20, 100], 3), ("sum", [10, 200], None)]
    expected = [run(compile(program), lambda: (vector(), *kind)) for kind in kinds]
    stowage.enable()
    function = compile(program)
    for _ in range(2):
        assert [run(function, lambda: (vector(), *kind)) for kind in kinds] == expected
    assert [phase["state"] for phase in newest_region()["phases"]] == ["planned"] * 3
