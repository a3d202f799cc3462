# SPDX-License-Identifier: Apache-2.0
"""A plan with reuse is followed by threads in another state than the one that was profiled, and by several at once; and
ops whose kernels are not those that were tested."""

from __future__ import annotations

import threading
from typing import Any, Callable

import pytest
import stowage
import torch
from planning import SIZE, assert_same, compile, digest, held, planned_phase, reused, run, vector
from torch.utils._python_dispatch import TorchDispatchMode



# --- the state of the thread --------------------------------------------------------------------------------------

PLAIN = """
def step(x):
    a = torch.cat([x, x])
    b = torch.relu(a)
    c = b.view(2, -1)
    d = torch.sigmoid(c)
    return d.sum(), d.exp().mean()
"""


class Keeps(TorchDispatchMode):
    """A mode that keeps what ops are given, and what it was then."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                self.kept.append((argument, digest(argument)))
        return function(*arguments, **(keywords or {}))


def planned_then(within: Callable[[], Any]) -> dict:
    """The counters of PLAIN, planned as usual, then run three times within a context, with results as unplanned."""
    def calls(function) -> list:
        results = []
        for call in range(12):
            torch.manual_seed(call)
            x = vector()
            with torch.no_grad():
                if call in (7, 8, 10):
                    with within():
                        results.append(digest(function(x)))
                else:
                    results.append(digest(function(x)))
        return results

    expected = calls(compile(PLAIN))
    stowage.enable()
    before = {region["name"] for region in stowage.status()["regions"]}
    function = compile(PLAIN)
    assert calls(function) == expected
    # Autocast has a graph of its own.
    phases = [region["phases"] for region in stowage.status()["regions"] if region["name"] not in before]
    totals = [phase["total"] for found in phases for phase in found if phase["state"] == "planned"]
    assert sum(total["reused"]["allocations"] for total in totals) >= 6
    return max(totals, key=lambda total: total["hits"]["allocations"])


def test_a_dispatch_mode_may_keep_inputs():
    modes = []

    def mode():
        modes.append(Keeps())
        return modes[-1]

    assert planned_then(mode)["misses"]["held"]["allocations"] >= 3
    assert any(mode.kept for mode in modes)
    for mode in modes:
        for tensor, before in mode.kept:
            assert digest(tensor) == before


def test_memory_that_is_filled_before_use():
    class Deterministic:
        def __enter__(self):
            torch.use_deterministic_algorithms(True)

        def __exit__(self, *_):
            torch.use_deterministic_algorithms(False)

    assert planned_then(Deterministic)["misses"]["held"]["allocations"] == 6


def test_an_observer_that_gets_inputs():
    within = lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
    assert planned_then(within)["misses"]["held"]["allocations"] == 6


def test_an_observer_of_the_first_steps_leaves_the_plan_its_reuse():
    stowage.enable()
    function = compile(PLAIN)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True):
        run(function, lambda: (vector(),))
    phase = planned_phase()
    assert reused(phase) == 0 and held(phase) >= 2
    run(function, lambda: (vector(),))
    phase = planned_phase()
    assert reused(phase) >= 2 and held(phase) == 0


def test_a_profiler_that_gets_no_inputs_does_not_matter():
    within = lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    assert planned_then(within)["misses"]["held"]["allocations"] == 0


def test_autocast():
    planned_then(lambda: torch.autocast("cpu", dtype=torch.bfloat16))


def test_forward_mode_gradients():
    source = """
def step(x):
    a = x * 2
    b = torch.sigmoid(a)
    c = b * b
    return c.sum(), torch.tanh(c).mean()
"""

    def calls(function) -> list:
        results = []
        for call in range(12):
            torch.manual_seed(call)
            x = vector()
            with torch.autograd.forward_ad.dual_level(), torch.no_grad():
                if call in (7, 8, 10):
                    x = torch.autograd.forward_ad.make_dual(x, torch.randn(SIZE))
                results.append([digest(part) for result in function(x)
                                for part in torch.autograd.forward_ad.unpack_dual(result)])
        return results

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    assert reused(planned_phase()) >= 2


# --- several threads ------------------------------------------------------------------------------------------------

def test_several_threads_run_one_region():
    source = PLAIN
    stowage.enable()
    function = compile(source)
    run(function, lambda: (vector(),))
    plain = compile(source)
    stowage.set_option("plan", "0")
    inputs = [vector() for _ in range(8)]
    with torch.no_grad():
        expected = [digest(plain(x)) for x in inputs]
    stowage.set_option("plan", "1")
    wrong = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(60):
                if digest(function(inputs[number])) != expected[number]:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    phases = [region["phases"] for region in stowage.status()["regions"] if region["alive"]]
    assert any(reused(phase, "total") > 0 for found in phases for phase in found if phase["state"] == "planned")


def test_inference_mode_reuses_too():
    source = PLAIN

    def calls(function) -> list:
        results = []
        for call in range(8):
            torch.manual_seed(call)
            with torch.inference_mode():
                results.append(digest(function(vector())))
        return results

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    phase = planned_phase()
    assert reused(phase) >= 2 and held(phase) == 0


# --- other kernels --------------------------------------------------------------------------------------------------

def test_quantized_tensors_are_not_reused():
    """Their kernels are others, on which no op of the list was tested."""
    phase = assert_same("""
def step(x):
    a = torch.relu(x)
    b = torch.relu(a)
    c = torch.clamp(b, 0.1, 0.9)
    return c.dequantize().sum(), torch.dequantize(b)
""", lambda: (torch.quantize_per_tensor(vector(), 0.1, 100, torch.quint8),))
    assert reused(phase) == 0


@pytest.mark.parametrize("name, replacement", [
    ("relu", lambda x: torch.zeros_like(x).add_(x).abs_()),
    ("mul.Tensor", lambda x, y: torch.zeros_like(x).add_(x)),  # which mul.Scalar calls
], ids=["itself", "called by another"])
@pytest.mark.filterwarnings("ignore:Warning only once")
def test_where_a_kernel_is_replaced_nothing_is_reused(name, replacement, tmp_path):
    """By one that reads its input after it has written its result; and the store keeps such plans apart."""
    stowage.set_option("store", str(tmp_path / "run.db"))
    source = """
def step(x):
    a = torch.cat([x, x])
    b = torch.relu(a)
    c = b * 2
    return c.sum(), x.mean()
"""
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, replacement, "CPU")
    try:
        assert reused(assert_same(source, lambda: (vector(),))) == 0
    finally:
        library._destroy()
    later = assert_same(source, lambda: (vector(),))
    assert reused(later) == 2 and not later["recalled"]
