# SPDX-License-Identifier: Apache-2.0
"""Every op of the allowlist in solver/pointwise.cpp, really run with its result on its input, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
import stowage
import torch
from planning import digest, newest_region, planned_phase

POINTWISE = Path(__file__).parents[2] / "solver" / "pointwise.cpp"
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.bool)
#: Runs until the plan is followed, and those that follow it.
CALLS = 7
A, B, C = "a", "b", "c"
#: Stands for the dtype of the tensors where an op takes that too.
DTYPE = "dtype"
#: c10/core/ScalarType.h
SCALAR_TYPES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

#: By op: its arguments, once for each overload and special case; letters are tensors.
CASES: dict[str, list[tuple]] = {
    "_log_softmax": [(A, -1, False), (A, 0, False)],
    "_log_softmax_backward_data": [(A, B, -1, DTYPE), (A, B, 0, DTYPE)],
    "_softmax": [(A, -1, False), (A, 0, False)],
    "_softmax_backward_data": [(A, B, -1, DTYPE), (A, B, 0, DTYPE)],
    "abs": [(A,)],
    "add": [(A, B, 1), (A, B, -3), (A, B, 0.5), (A, 2, 1), (A, 0.5, 2)],
    "addcdiv": [(A, B, C, 1), (A, B, C, 0.5), (A, A, B, 0.3)],
    "addcmul": [(A, B, C, 1), (A, B, C, -2), (A, B, B, 1), (A, A, A, 1)],
    "ceil": [(A,)],
    "clamp": [(A, -0.5, 1.5), (A, None, 1), (A, 0, None), (A, B, C), (A, B, None), (A, None, B), (A, A, B)],
    "clamp_max": [(A, 1), (A, B)],
    "clamp_min": [(A, 0), (A, B)],
    "cos": [(A,)],
    "div": [(A, B), (A, 3.0), (A, B, "floor"), (A, B, "trunc"), (A, A)],
    "elu": [(A, 1.0, 1, 1), (A, 1.67, 1.05, 1), (A, -0.5, 1, 1)],
    "elu_backward": [(A, 1.0, 1, 1, False, B), (A, 1.0, 1, 1, True, B)],
    "erf": [(A,)],
    "exp": [(A,)],
    "expm1": [(A,)],
    "floor": [(A,)],
    "gelu": [(A, "none"), (A, "tanh")],
    "gelu_backward": [(A, B, "none"), (A, B, "tanh")],
    "hardsigmoid": [(A,)],
    "hardsigmoid_backward": [(A, B)],
    "hardswish": [(A,)],
    "hardswish_backward": [(A, B)],
    "hardtanh": [(A, -1, 1)],
    "hardtanh_backward": [(A, B, -1, 1)],
    "leaky_relu": [(A, 0.01)],
    "leaky_relu_backward": [(A, B, 0.01, False)],
    "lerp": [(A, B, 0.25), (A, B, 0.75), (A, B, C), (A, A, B)],
    "log": [(A,)],
    "log1p": [(A,)],
    "maximum": [(A, B)],
    "minimum": [(A, B)],
    "mish": [(A,)],
    "mish_backward": [(A, B)],
    "mul": [(A, B), (A, 3), (A, 0.5), (A, A)],
    "neg": [(A,)],
    "pow": [(A, 2), (A, 0), (A, 1), (A, 3), (A, 0.5), (A, -1), (A, -0.5), (A, 1.7), (A, B), (A, A), (2, A), (1, A)],
    "reciprocal": [(A,)],
    "relu": [(A,)],
    "rsqrt": [(A,)],
    "rsub": [(A, B, 1), (A, 1, 2)],
    "sigmoid": [(A,)],
    "sigmoid_backward": [(A, B)],
    "sign": [(A,)],
    "silu": [(A,)],
    "silu_backward": [(A, B)],
    "sin": [(A,)],
    "softplus": [(A, 1, 20)],
    "softplus_backward": [(A, B, 1, 20)],
    "sqrt": [(A,)],
    "square": [(A,)],
    "sub": [(A, B, 1), (A, B, 2), (A, 0.5, 1)],
    "tanh": [(A,)],
    "tanh_backward": [(A, B)],
    "threshold_backward": [(A, B, 0), (A, B, 0.5)],
    "where": [("mask", A, B), ("mask", A, A), ("mask", A, 2), ("mask", 0.5, A)],
}


@pytest.fixture(autouse=True)
def small_graphs_on_two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    stowage.set_option("min_ops", "1")
    yield
    torch.set_num_threads(threads)


def allowed() -> list[str]:
    names = re.search(r"kNames = \{(.*?)\};", POINTWISE.read_text(), re.DOTALL)
    return re.findall(r'"(\w+)"', names[1])


def test_each_allowed_op_is_tested():
    assert list(CASES) == sorted(CASES) == allowed()


# --- tensors of every size and layout -----------------------------------------------------------------------------

def values(shape: tuple, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_complex:
        return torch.complex(torch.randn(shape), torch.randn(shape)).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, shape, dtype=dtype)
    found = torch.randn(shape) * 2
    flat = found.view(-1)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-42])
    if flat.numel() > 100:
        flat[:: flat.numel() // 50] = special.repeat(8)[: len(flat[:: flat.numel() // 50])]
    return found.to(dtype)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last)


#: Shapes, and what lays them out; 40000 and the images are beyond 32768, from where kernels run on several threads.
LAYOUTS: list[tuple[tuple, Callable]] = [
    ((0,), lambda x: x), ((1,), lambda x: x), ((7,), lambda x: x), ((64,), lambda x: x), ((1000,), lambda x: x),
    ((40000,), lambda x: x), ((33, 65), lambda x: x), ((65, 33), lambda x: x.t()), ((2, 3, 5, 7), lambda x: x),
    ((2, 3, 5, 7), channels_last), ((2, 32, 25, 25), channels_last), ((4, 5, 6), lambda x: x.permute(2, 0, 1)),
]


class Site(NamedTuple):
    """One op on one set of tensors; `fresh` of them are made by the step and die in the op."""

    tensors: dict[str, torch.Tensor]
    fresh: tuple[str, ...]


def sites(op: str, names: list[str], dtype: torch.dtype) -> list[Site]:
    """Each tensor in turn the only one that may be reused, then all; then with the others broadcast or laid out
    otherwise, but for softmax's backward, which does not check that."""
    found = []
    choices = [(name,) for name in names] + ([tuple(names)] if len(names) > 1 else [])
    for shape, lay_out in LAYOUTS:
        for fresh in choices:
            found.append(Site({name: lay_out(values(shape, dtype)) for name in names}, fresh))
    if len(names) == 1 or op.endswith("_backward_data"):
        return found
    for own in names:
        for shape, lay_out, others in (
            ((33, 65), lambda x: x, (65,)), ((33, 65), lambda x: x, (33, 1)), ((65, 33), lambda x: x.t(), (33, 1)),
            ((2, 3, 5, 7), channels_last, (3, 1, 1)), ((2, 3, 5, 7), lambda x: x, ()), ((1000,), lambda x: x, (1,)),
        ):
            tensors = {name: values(others, dtype) for name in names}
            tensors[own] = lay_out(values(shape, dtype))
            found.append(Site(tensors, (own,)))
        tensors = {name: channels_last(values((2, 3, 5, 7), dtype)) for name in names}
        tensors[own] = values((2, 3, 5, 7), dtype)
        found.append(Site(tensors, (own,)))
    return found


# --- one program with the op at every site ------------------------------------------------------------------------

def literal(value: Any) -> tuple[str, str]:
    """The type and attribute of a constant."""
    if value is None:
        return "NoneType", ""
    if isinstance(value, bool):
        return "bool", f"[value={int(value)}]"
    kind = {int: "int", float: "float", str: "str"}[type(value)]
    return kind, f'[value="{value}"]' if kind == "str" else f"[value={value}]"


def program(op: str, arguments: tuple, all_sites: list[Site]) -> tuple[Any, list[torch.Tensor]]:
    """For each site: copies of the fresh tensors, the op, and a copy of its result, which leaves the step."""
    inputs, lines, results = [], [], []
    constants = {position: literal(value) for position, value in enumerate(arguments)
                 if not (isinstance(value, str) and value in (A, B, C, "mask"))}
    for position, (kind, attribute) in constants.items():
        lines.append(f"%k{position} : {kind} = prim::Constant{attribute}()")
    lines.append("%none : NoneType = prim::Constant()")
    for number, site in enumerate(all_sites):
        names = {}
        for name, tensor in site.tensors.items():
            names[name] = f"%x{len(inputs)}"
            inputs.append(tensor)
            if name in site.fresh:
                lines.append(f"%{name}{number} : Tensor = aten::clone({names[name]}, %none)")
                names[name] = f"%{name}{number}"
        taken = [f"%k{position}" if position in constants else names[value] for position, value in enumerate(arguments)]
        lines.append(f"%r{number} : Tensor = {op}({', '.join(taken)})")
        lines.append(f"%o{number} : Tensor = aten::clone(%r{number}, %none)")
        results.append(f"%o{number}")
    lines.append(f"%all : Tensor[] = prim::ListConstruct({', '.join(results)})")
    header = ", ".join(f"%x{number} : Tensor" for number in range(len(inputs)))
    text = "\n  ".join([f"graph({header}):", *lines, "return (%all)"])
    return torch._C._create_function_from_graph("step", torch._C.parse_ir(text)), inputs


def arguments_of(name: str, dtype: torch.dtype) -> list[tuple]:
    """The cases of an op, for tensors of the dtype; none where it does not take that."""
    cases = CASES[name]
    if not any(DTYPE in arguments for arguments in cases):
        return cases
    if dtype not in SCALAR_TYPES:
        return []
    return [tuple(SCALAR_TYPES[dtype] if value == DTYPE else value for value in arguments) for arguments in cases]


def call(op: str, arguments: tuple, site: Site) -> torch.Tensor:
    namespace, name = op.split("::")
    taken = [site.tensors[value] if isinstance(value, str) and value in site.tensors else value for value in arguments]
    if name == "div" and len(taken) == 3:
        return torch.div(taken[0], taken[1], rounding_mode=taken[2])
    if name in ("addcmul", "addcdiv"):
        return getattr(torch, name)(*taken[:3], value=taken[3])
    if name in ("gelu", "gelu_backward"):
        return getattr(torch.ops.aten, name)(*taken[:-1], approximate=taken[-1])
    if name in ("add", "sub", "rsub") and isinstance(taken[1], torch.Tensor):
        return getattr(torch, name)(*taken[:2], alpha=taken[2])
    return getattr(getattr(torch.ops, namespace), name)(*taken)


def may_reuse(site: Site, result: torch.Tensor) -> bool:
    """Whether the result could take the place of one of the fresh tensors."""
    return result.numel() > 0 and any(
        (tensor.dtype, tensor.shape, tensor.stride()) == (result.dtype, result.shape, result.stride())
        for tensor in (site.tensors[name] for name in site.fresh))


class Outcome(NamedTuple):
    """At how many sites the input's memory was taken, and at how many it can be."""

    reused: int
    possible: int


def assert_bit_identical(op: str, arguments: tuple, dtype: torch.dtype) -> Outcome:
    """Plans the op at every site that it takes, follows the plan, and compares every run with eager."""
    torch.manual_seed(7)
    names = [name for name in (A, B, C) if name in arguments]
    all_sites, expected = [], []
    for site in sites(op, names, dtype):
        if "mask" in arguments:
            site.tensors["mask"] = torch.rand(site.tensors[A].shape) > 0.5
        try:
            expected.append(call(op, arguments, site))
        except (RuntimeError, NotImplementedError):
            continue  # it does not take the dtype, or does not broadcast
        all_sites.append(site)
    if not all_sites:
        return Outcome(0, 0)
    stowage.enable()
    step, inputs = program(op, arguments, all_sites)
    with torch.no_grad():
        for _ in range(CALLS):
            assert digest(step(*inputs)) == digest(expected)
    last = planned_phase(min_hits=0)["last"]
    assert last["misses"]["held"]["allocations"] == last["misses"]["busy"]["allocations"] == 0
    return Outcome(last["reused"]["allocations"], sum(map(may_reuse, all_sites, expected)))


@pytest.mark.parametrize(
    "dtypes", [(torch.float32,), pytest.param((*FLOATS[1:], *WHOLE), marks=pytest.mark.slow)], ids=["float32", "others"])
@pytest.mark.parametrize("name", CASES)
def test_result_on_input(name, dtypes):
    """Wherever dtype and strides agree the memory is taken; where numbers are promoted it is not."""
    for dtype in dtypes:
        for arguments in arguments_of(name, dtype):
            outcome = assert_bit_identical(f"aten::{name}", arguments, dtype)
            assert outcome.reused == outcome.possible, (arguments, dtype)
            # Of 12 tensors one is empty. With a number or a contiguous mask first so is the result, whatever the tensor;
            # so it is of softmax.
            at_least = 7 if arguments[0] in (1, 2, "mask") or "softmax" in name else 11
            assert outcome.reused >= at_least or not dtype.is_floating_point, (arguments, dtype)


@pytest.mark.parametrize("arguments", [(A, B, C, 1), (A, B, B, 0.5)])
def test_complex_numbers_round_differently_in_place(arguments, two_vectors):
    """Where they broadcast, the last bits of addcmul in place are others, as of addcmul_."""
    outcome = assert_bit_identical("aten::addcmul", arguments, torch.complex64)
    assert outcome.reused == 0 and outcome.possible > 10


# --- what the tests above would notice ----------------------------------------------------------------------------

LIBRARY = torch.library.Library("stowage_reuse", "DEF")


def read_after_write(a: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(a)
    return result.fill_(1).mul_(a)


def swap_halves(a: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(a)
    half = a.numel() // 2
    result.view(-1)[:half] = a.view(-1)[half:half + half]
    result.view(-1)[half:half + half] = a.view(-1)[:half]
    return result


def gate(a: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a).copy_(a).mul_(3)


for function in (read_after_write, swap_halves, gate):
    LIBRARY.define(f"{function.__name__}(Tensor a) -> Tensor")
    LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")


@pytest.fixture
def two_vectors(monkeypatch):
    monkeypatch.setitem(globals(), "LAYOUTS", [((64,), lambda x: x), ((1000,), lambda x: x)])


@pytest.mark.parametrize("name", ["read_after_write", "swap_halves"])
def test_an_op_that_is_not_index_wise_is_noticed(name, two_vectors):
    op = f"stowage_reuse::{name}"
    assert assert_bit_identical(op, (A,), torch.float32) == Outcome(reused=0, possible=2)
    stowage.set_option("reuse_ops", f"mine::other, {op}")
    with pytest.raises(AssertionError):
        assert_bit_identical(op, (A,), torch.float32)


def test_verify_names_an_op_that_is_not_index_wise_and_gives_the_right_results(two_vectors):
    stowage.set_option("reuse_ops", "stowage_reuse::read_after_write")
    stowage.set_option("verify", "1")
    outcome = assert_bit_identical("stowage_reuse::read_after_write", (A,), torch.float32)
    assert outcome == Outcome(reused=2, possible=2)
    found = [region for region in stowage.status()["regions"] if region["differing_runs"] > 0][-1]["first_difference"]
    assert found["kind"] == "stowage_reuse::read_after_write"


def test_an_op_of_the_users_may_reuse_when_named(two_vectors):
    stowage.set_option("reuse_ops", "stowage_reuse::gate")
    assert assert_bit_identical("stowage_reuse::gate", (A,), torch.float32) == Outcome(reused=2, possible=2)


def test_nothing_is_reused_while_the_option_is_off(two_vectors):
    stowage.set_option("reuse", "0")
    assert assert_bit_identical("aten::relu", (A,), torch.float32) == Outcome(reused=0, possible=2)
