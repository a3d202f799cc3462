# SPDX-License-Identifier: Apache-2.0
"""What changes from one run to the next: branches, shapes, values, threads, and whether stowage is on."""

import threading

import stowage
import torch
from planning import assert_same, compile, digest, newest_region, run


def vector(size: int = 1000) -> torch.Tensor:
    return torch.randn(size)


# --- control flow ----------------------------------------------------------------------------------------------------


def test_branch_that_was_not_profiled():
    source = """
def step(x, y):
    a = torch.cat([x, x]).exp()
    if float(y.sum()) > 0:
        b = a * 2
    else:
        c = torch.cat([a, a]).sin()
        d = torch.cat([c, c]).cos()
        b = d[:2000] + a
    e = b.tanh() + a
    return e.sum(), b + 1
"""
    signs = iter([1, 1, 1, 1, -1, 1, -1, -1] * 2)
    assert_same(source, lambda: (vector(), torch.full((4,), float(next(signs)))), keep=True)


def test_loop_of_varying_length():
    source = """
def step(x, n):
    y = x.exp()
    for _ in range(int(n)):
        y = torch.cat([y[:500], x[500:]]).sin() + y
    z = y.cos()
    return z.sum() + y, z
"""
    lengths = iter([3, 3, 3, 3, 5, 1, 0, 8] * 2)
    assert_same(source, lambda: (vector(), torch.tensor(next(lengths))))


def test_branch_that_may_return_its_input():
    source = """
def step(x, y):
    a = x.exp()
    if float(y.sum()) > 0:
        b = a
    else:
        b = a.clone()
    b.add_(1)
    c = a * 2
    d = torch.cat([c, c]).sin().sum()
    return a + d, b
"""
    signs = iter([1, 1, 1, 1, -1, 1, -1, -1] * 2)
    assert_same(source, lambda: (vector(), torch.full((4,), float(next(signs)))))


# --- shapes and values ------------------------------------------------------------------------------------------------

CHAIN = """
def step(x, w):
    a = torch.mm(x, w)
    b = torch.relu(a)
    c = torch.mm(b, w)
    d = torch.sigmoid(c) * b
    return d.sum(), c.mean(0)
"""


def chain_inputs(rows: int):
    return lambda: (torch.randn(rows, 64), torch.randn(64, 64))


def test_each_shape_has_its_plan_and_the_oldest_goes_first():
    stowage.set_option("max_plans", "2")
    expected = {rows: run(compile(CHAIN), chain_inputs(rows)) for rows in (8, 16, 24)}
    stowage.enable()
    function = compile(CHAIN)
    for rows in (8, 16, 8, 24, 16, 8, 24):
        assert run(function, chain_inputs(rows)) == expected[rows]
    phases = newest_region()["phases"]
    assert [phase["state"] for phase in phases] == ["planned", "planned"]
    assert newest_region()["plans_made"] >= 3


def test_arena_is_as_large_as_the_largest_plan():
    stowage.enable()
    function = compile(CHAIN)
    for rows in (8, 64, 16):
        run(function, chain_inputs(rows))
    status = stowage.status()
    assert status["arena_bytes"] == max(phase["arena_bytes"] for phase in newest_region()["phases"])


def test_floats_need_no_plan_of_their_own_but_whole_numbers_do():
    source = """
def step(x, scale: float, times: int, bias: Optional[torch.Tensor]):
    a = torch.cat([x] * times).exp() * scale
    b = a.sin()
    c = b.cos() + a
    if bias is not None:
        c = c + bias
    return c.sum()
"""
    stowage.enable()
    function = compile(source)
    for scale in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        run(function, lambda: (vector(), scale, 2, None), calls=1)
    assert len(newest_region()["phases"]) == 1
    run(function, lambda: (vector(), 0.1, 3, None))
    run(function, lambda: (vector(), 0.1, 3, torch.ones(1)))
    states = [phase["state"] for phase in newest_region()["phases"]]
    assert len(states) >= 2 and set(states) == {"planned"}


def test_empty_tensors():
    source = """
def step(x):
    e = x[:0].exp()
    a = torch.cat([e, x, e]).sin()
    b = a * 2 + e.sum()
    return b.cos(), e
"""
    assert_same(source, lambda: (vector(),))


def test_op_with_workspace():
    source = """
def step(x, w, b):
    y = torch.conv2d(x, w, b, 1, 1)
    z = torch.conv2d(torch.relu(y), w, b, 1, 1)
    return (z + y).sum(), z.mean([0, 2, 3])
"""
    assert_same(source, lambda: (torch.randn(2, 8, 20, 20), torch.randn(8, 8, 3, 3), torch.randn(8)))


# --- threads, nesting, refusal ----------------------------------------------------------------------------------------


def test_two_threads_run_one_function():
    expected = run(compile(CHAIN), chain_inputs(32))
    stowage.enable()
    function = compile(CHAIN)
    run(function, chain_inputs(32))
    failures = []

    def work() -> None:
        generator = torch.Generator().manual_seed(7)
        x, w = torch.randn(32, 64, generator=generator), torch.randn(64, 64, generator=generator)
        with torch.no_grad():
            first = digest(function(x, w))
            failures.extend("differs" for _ in range(200) if digest(function(x, w)) != first)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert run(function, chain_inputs(32)) == expected


def test_fork_is_left_alone_and_says_why():
    class Forks(torch.nn.Module):
        def forward(self, x):
            future = torch.jit.fork(torch.sin, x)
            y = x.exp() + x.cos() + x.tanh()
            return torch.jit.wait(future) + y

    stowage.enable()
    module = torch.jit.script(Forks())
    x = vector()
    with torch.no_grad():
        for _ in range(4):
            module(x)
    why = [graph["why"] for graph in stowage.status()["left_alone"]]
    assert "it contains prim::fork, which runs ops on other threads" in why


def test_disable_leaves_plain_graphs():
    expected = run(compile(CHAIN), chain_inputs(32))
    stowage.enable()
    function = compile(CHAIN)
    run(function, chain_inputs(32))
    stowage.disable()
    assert run(function, chain_inputs(32)) == expected
    status = stowage.status()
    assert status["enabled"] is False and status["arena_bytes"] == 0


def test_runs_that_are_never_alike_are_given_up(capfd):
    source = """
def step(x, n):
    a = torch.cat([x, x]).exp()
    m = int(n)
    b = torch.zeros(m) + 1.0
    c = b.sin().sum() + a
    return c.cos()
"""
    lengths = iter(range(10, 400))
    stowage.set_option("max_profile_runs", "3")
    stowage.enable()
    function = compile(source)
    seen = run(function, lambda: (vector(), torch.tensor(next(lengths))))
    phase = newest_region()["phases"][0]
    assert phase["state"] == "unplanned"
    assert phase["why"].startswith("no two of 3 runs in a row were alike: ")
    assert len([line for line in capfd.readouterr().err.splitlines() if "is not planned" in line]) == 1
    stowage.disable()
    lengths = iter(range(10, 400))
    assert seen == run(compile(source), lambda: (vector(), torch.tensor(next(lengths))))
