# SPDX-License-Identifier: Apache-2.0
"""A result is written over an input only where nobody else can read the input again; else it costs memory, never a wrong
number. What no profile shows is done here after the plan is in force."""

from __future__ import annotations

import weakref
from typing import Any, Callable

import pytest
import stowage
import torch
from planning import SIZE, assert_same, compile, digest, held, newest_region, planned_phase, reused, run, vector
from stowage.curve import Curve
from stowage.store import Store

LIBRARY = torch.library.Library("stowage_reuse_hazards", "DEF")


class Behaviour:
    """What the custom ops below do in the present call."""

    def __init__(self):
        self.look: Callable[[torch.Tensor], Any] = lambda tensor: None
        self.raises = False


behaviour = Behaviour()


def look(x: torch.Tensor) -> torch.Tensor:
    behaviour.look(x)
    return x.sum()


def fail(x: torch.Tensor) -> torch.Tensor:
    if behaviour.raises:
        raise ValueError("on purpose")
    return x.sum()


for function in (look, fail):
    LIBRARY.define(f"{function.__name__}(Tensor x) -> Tensor")
    LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")


@pytest.fixture(autouse=True)
def plain_behaviour():
    behaviour.__init__()
    yield
    behaviour.__init__()


def graph_function(text: str) -> Any:
    return torch._C._create_function_from_graph("step", torch._C.parse_ir(text))


# --- what the plan shows ------------------------------------------------------------------------------------------

def test_an_input_that_is_used_again_is_not_reused():
    phase = assert_same("""
def step(x):
    a = x * 2
    b = torch.relu(a)
    c = b + a
    return c.sum(), x.sum()
""", lambda: (vector(),))
    assert reused(phase) == 1  # c on b or on a, but never b on a


def test_an_alias_that_is_read_later_keeps_the_memory():
    phase = assert_same("""
def step(x):
    a = torch.cat([x, x])
    v = a.view(2, -1)
    b = torch.relu(a)
    return b.sum() + v.sum(), v[0].exp().sum()
""", lambda: (vector(),))
    assert "stowage::reuse" not in stowage.planned_graph().split("aten::relu")[0].splitlines()[-1]
    assert held(phase) == 0


def test_a_write_after_the_op_does_not_reach_the_result():
    phase = assert_same("""
def step(x):
    a = torch.cat([x, x])
    b = torch.relu(a)
    a.add_(1)
    c = torch.exp(a)
    return b.sum() + c.sum(), b.mean()
""", lambda: (vector(),))
    assert reused(phase) == 1  # exp's result on a


def test_one_tensor_twice_and_two_views_of_one():
    phase = assert_same("""
def step(x):
    a = torch.cat([x, x])
    b = a * a
    v = b.view(-1, 2)
    w = b.view(-1, 2)
    c = v * w
    d = torch.sigmoid(c) + v[0, 0]
    return d.sum(), d.exp().mean()
""", lambda: (vector(),))
    assert reused(phase) >= 1


def test_the_store_replays_the_plan_to_its_peak(tmp_path):
    """And a later plan is recalled only where the same may be reused."""
    stowage.set_option("store", str(tmp_path / "run.db"))
    source = """
def step(x):
    a = torch.cat([x, x])
    b = torch.sigmoid(a)
    c = torch.tanh(b)
    return c.sum(), x.mean()
"""
    phase = assert_same(source, lambda: (vector(),))
    assert reused(phase) == 2
    with Store(str(tmp_path / "run.db")) as store:
        taken = store.run(None)
        assert Curve(store, taken, planned=True).peak()["live_bytes"] == phase["peak_bytes"] < phase["program_peak_bytes"]
        assert sum(len(op["reuse"]) for op in store.plan(taken)["order"]) == 2
    assert assert_same(source, lambda: (vector(),))["recalled"]
    stowage.set_option("reuse", "0")
    without = assert_same(source, lambda: (vector(),))
    assert reused(without) == 0 and without["peak_bytes"] > phase["peak_bytes"]


# --- who holds the input all the same -----------------------------------------------------------------------------

#: The op that looks runs where x[0] is above 0 alone: Python has no object of the tensor in the other runs.
HELD_GRAPH = """
graph(%x : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %first : Tensor = aten::select(%x, %zero, %zero)
  %above : Tensor = aten::gt(%first, %zero)
  %looks : bool = aten::Bool(%above)
  %list : Tensor[] = prim::ListConstruct(%x, %x)
  %a : Tensor = aten::cat(%list, %zero)
  %h : Tensor = prim::If(%looks)
    block0():
      %h.1 : Tensor = stowage_reuse_hazards::look(%a)
      -> (%h.1)
    block1():
      %h.2 : Tensor = aten::sum(%a, %none)
      -> (%h.2)
  %s : Tensor = aten::sin(%h)
  %b : Tensor = aten::relu(%a)
  %t : Tensor = aten::sum(%b, %none)
  %u : Tensor = aten::add(%t, %s, %one)
  return (%u)"""


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda tensor: tensor,
    "list": lambda tensor: [tensor],
    "detached": lambda tensor: tensor.detach(),
    "view": lambda tensor: tensor.view(2, -1),
    "part": lambda tensor: tensor[5:9],
    "storage": lambda tensor: tensor.untyped_storage(),
    "array": lambda tensor: tensor.numpy(),
    "memory": lambda tensor: memoryview(tensor.numpy()),
    "capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "copy on write": lambda tensor: torch._lazy_clone(tensor),
    "closure": lambda tensor: lambda: tensor,
    "set": lambda tensor: torch.empty(0).set_(tensor),
    "other dtype": lambda tensor: tensor.view(torch.int32),
}


def content(holder: Any) -> bytes:
    if callable(holder):
        holder = holder()
    if isinstance(holder, list):
        holder = holder[0]
    if type(holder).__name__ == "PyCapsule":
        holder = torch.utils.dlpack.from_dlpack(holder)
    if isinstance(holder, torch.UntypedStorage):
        holder = torch.tensor([], dtype=torch.uint8).set_(holder)
    return holder.numpy().tobytes() if isinstance(holder, torch.Tensor) else bytes(holder)


def looking_calls(function: Callable, looks: Callable[[torch.Tensor], Any]) -> list:
    """Calls of HELD_GRAPH, of which two look after the plan is in force."""
    behaviour.look = looks
    results = []
    for call in range(10):
        torch.manual_seed(call)
        x = vector()
        x[0] = 1 if call in (6, 8) else -1
        with torch.no_grad():
            results.append(digest(function(x)))
    return results


@pytest.mark.parametrize("name", HOLDERS)
def test_what_an_op_keeps_of_the_input_stays_as_it_was(name):
    def calls(function) -> tuple[list, list]:
        kept: list[Any] = []
        results = looking_calls(function, lambda tensor: kept.append(HOLDERS[name](tensor)))
        return results, [content(holder) for holder in kept]

    expected = calls(graph_function(HELD_GRAPH))
    stowage.enable()
    function = graph_function(HELD_GRAPH)
    assert calls(function) == expected
    phase = planned_phase()
    assert reused(phase, "total") > 0
    assert phase["total"]["misses"]["held"]["allocations"] > 0


def test_a_weak_reference_counts_as_holding():
    seen: list[weakref.ref] = []
    expected = looking_calls(graph_function(HELD_GRAPH), lambda tensor: None)
    stowage.enable()
    function = graph_function(HELD_GRAPH)
    assert looking_calls(function, lambda tensor: seen.append(weakref.ref(tensor))) == expected
    phase = planned_phase()
    assert phase["total"]["misses"]["held"]["allocations"] == 2 * len(seen) == 4  # of a, and of what Python returned
    assert reused(phase) == 2  # nothing is kept, so the next run has its slots again


def test_a_branch_that_was_not_profiled_keeps_an_alias():
    source = """
def step(x, y):
    a = torch.cat([x, x])
    if bool(x[0] > 0):
        v = a.view(2, -1)
    else:
        v = y.view(2, -1).clone()
    b = torch.relu(a)
    return b.sum(), v.exp().sum(), b.mean()
"""
    assert_branches(source)


def test_a_branch_that_was_not_profiled_keeps_the_input_in_a_list():
    source = """
def step(x, y):
    kept = [y]
    a = torch.cat([x, x])
    if bool(x[0] > 0):
        kept.append(a)
    b = torch.relu(a)
    return b.sum(), kept[-1].exp().sum(), b.mean()
"""
    assert_branches(source)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_op_returns_an_alias_where_the_profile_had_a_copy(mode):
    """As reshape does of a contiguous tensor; under inference mode the view does not hold its base."""
    assert_branches("""
def step(x, y):
    if bool(x[0] > 0):
        a = torch.cat([x, x]).view(60, -1)
    else:
        a = torch.cat([x, x]).view(-1, 60).t()
    v = a.reshape(-1)
    b = torch.relu(a)
    c = b.sum() + y.sum()
    return c, v.exp().sum(), v[:100] * 2
""", mode)


@pytest.mark.parametrize(
    "other", ["y.to(torch.int32)", "y.view(2, -1).t().reshape(-1)", "y[:1]", "y.double()", "a"], ids=range(5))
@pytest.mark.parametrize("result", ["a + b", "b + a", "b * a"])
def test_a_branch_that_was_not_profiled_makes_another_operand(other, result):
    source = f"""
def step(x, y):
    a = torch.cat([x, x])
    if bool(x[0] > 0):
        b = {other}
    else:
        b = y * 2
    c = {result}
    return c.sum(), c.exp().mean(), b.double().sum()
"""
    assert_branches(source)


def test_a_branch_that_was_not_profiled_lays_out_the_result_otherwise():
    source = """
def step(x, y):
    a = torch.cat([x, x]).view(60, -1)
    if bool(x[0] > 0):
        b = y.view(-1, 60).clone().t()
    else:
        b = y.view(60, -1).clone()
    c = b + a
    return c.sum(), c.reshape(-1)[:100].clone(), c.exp().mean(), b.sum()
"""
    assert_branches(source)


def assert_branches(source: str, mode: Callable = torch.no_grad) -> None:
    """Profiled with x[0] below 0, planned runs on either side."""
    def calls(function) -> list:
        results = []
        for call in range(16):
            torch.manual_seed(call)
            x, y = vector(), torch.randn(2 * SIZE)
            x[0] = 1 if call in (9, 10, 12, 15) else -1
            with mode():
                results.append(digest(function(x, y)))
        return results

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    planned_phase()


# --- errors, constants ----------------------------------------------------------------------------------------------

def test_an_exception_after_a_reuse_leaves_nothing_behind():
    text = HELD_GRAPH.replace("stowage_reuse_hazards::look(%a)", "aten::sum(%a, %none)").replace(
        "%t : Tensor = aten::sum(%b, %none)", "%t : Tensor = stowage_reuse_hazards::fail(%b)")

    def calls(function) -> list:
        results = []
        for call in range(12):
            torch.manual_seed(call)
            behaviour.raises = call in (6, 7, 9)
            try:
                with torch.no_grad():
                    results.append(digest(function(vector())))
            except Exception as error:
                results.append("on purpose" in str(error))
        return results

    expected = calls(graph_function(text))
    assert expected[6] is True
    stowage.enable()
    function = graph_function(text)
    assert calls(function) == expected
    phase = planned_phase()
    assert (reused(phase), held(phase), phase["last"]["misses"]["busy"]["allocations"]) == (2, 0, 0)


def test_a_constant_that_differs_makes_another_graph():
    hashes = []
    stowage.enable()
    stowage.set_option("min_ops", "1")
    for value in (1.0, 2.0, 1.0):
        weight = torch.full((64,), value)
        traced = torch.jit.trace(lambda x: (x * weight).relu().sin(), vector()[:64], check_trace=False)
        with torch.no_grad():
            for _ in range(4):
                traced(torch.randn(64))
        hashes.append(newest_region()["graph_hash"])
    assert hashes[0] == hashes[2] != hashes[1]
