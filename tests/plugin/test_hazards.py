# SPDX-License-Identifier: Apache-2.0
"""What must not go wrong when ops move and memory is reused: each program, planned, equals itself unplanned."""

import pytest
import stowage
import torch
from planning import CALLS, assert_same, compile, digest, newest_region, plan_text, planned_phase, run


def vector(size: int = 1000) -> torch.Tensor:
    return torch.randn(size)


# --- randomness ------------------------------------------------------------------------------------------------------

DROPOUTS = """
def step(x):
    big = torch.dropout(torch.cat([x, x, x, x]).exp(), 0.5, True)
    low = big.sum()
    small = torch.dropout(x.sin(), 0.5, True)
    return low + small.sum()
"""


def test_random_draws_keep_their_order():
    # The small branch first would need less memory, but its mask would be another.
    assert_same(DROPOUTS, lambda: (vector(),))
    drawn = [line for line in plan_text().splitlines() if "aten::dropout" in line]
    assert ["%big" in drawn[0], "%small" in drawn[1]] == [True, True]


@pytest.mark.parametrize(
    "draw",
    ["x.clone().uniform_()", "torch.rand_like(x)", "torch.bernoulli(x.sigmoid())", "torch.rrelu(x, 0.1, 0.9, True)"],
)
def test_every_kind_of_draw_keeps_its_place(draw):
    source = f"""
def step(x):
    first = torch.cat([x, x, x]).exp()
    a = torch.dropout(first, 0.5, True).sum()
    b = {draw}
    c = torch.dropout(b * 2, 0.5, True)
    return a + c.sum()
"""
    assert_same(source, lambda: (vector(),))


def test_draws_inside_a_branch_keep_their_place():
    source = """
def step(x, flag: bool):
    big = torch.dropout(torch.cat([x, x, x]).exp(), 0.5, True).sum()
    if flag:
        y = torch.dropout(x, 0.5, True)
    else:
        y = x.neg()
    z = torch.dropout(x.cos(), 0.5, True)
    return big + y.sum() + z.sum()
"""
    assert_same(source, lambda: (vector(), True))


# --- aliases ---------------------------------------------------------------------------------------------------------


def test_memory_lives_as_long_as_its_last_view():
    source = """
def step(a, w):
    a = a.exp()
    b = a.t()
    c = a.relu()
    d = torch.mm(c, w)
    return b + d
"""
    assert_same(source, lambda: (torch.randn(32, 32), torch.randn(32, 32)))


def test_chain_of_views_outlives_its_base_by_name():
    source = """
def step(x):
    base = x.exp()
    view = base.view(10, 100)[2:8].unsqueeze(0).expand(3, 6, 100).reshape(3, 600)
    slice = base.view(10, 100)[1:3, 5:50]
    noise = torch.cat([x, x, x]).sin()
    other = torch.cat([noise, noise]).cos().sum()
    return view.sum(0), slice * other
"""
    assert_same(source, lambda: (vector(),))


def test_view_of_another_dtype_is_written_in_place():
    # TorchScript refuses `x.view(dtype)`; complex and real are the reinterpretation that it has.
    source = """
def step(x):
    real = torch.view_as_real(x)
    y = real * 2
    y.sub_(4)
    x[:, 1:3] = 7
    real.add_(1)
    return torch.view_as_complex(y) + x, x * 2, real.sum()
"""
    assert_same(source, lambda: (torch.randn(8, 6, dtype=torch.complex64),))


def test_running_statistics_are_read_before_and_after_they_change():
    source = """
def step(x, w, b, mean, var):
    before = mean * 2 + var
    y = torch.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)[0]
    after = mean * 3 + var
    z = torch.native_batch_norm(y.exp(), w, b, mean, var, True, 0.1, 1e-5)[0]
    return before, after, z.sum(), mean + 1
"""
    assert_same(
        source, lambda: (torch.randn(4, 8, 5), torch.rand(8), torch.rand(8), torch.randn(8), torch.rand(8) + 1)
    )


def test_writes_and_reads_of_one_storage_keep_their_order():
    source = """
def step(x, y):
    a = x * 2
    x.add_(1)
    b = x * 3
    x[10:20].mul_(y[10:20])
    y.copy_(b)
    c = x + y
    x.zero_()
    return a + b, c, x + 5
"""
    assert_same(source, lambda: (vector(), vector()))


def test_inputs_that_share_a_storage_have_a_plan_of_their_own():
    source = """
def step(x, y):
    a = x.exp() + y
    x.add_(1)
    b = y.exp() * a
    y.mul_(0.5)
    c = x.sin() + y.cos() + b
    return c.sum(), a + b
"""

    def shared() -> tuple:
        base = vector()
        return base[:600], base[400:]

    def separate() -> tuple:
        return vector(600), vector(600)

    expected = [run(compile(source), shared), run(compile(source), separate)]
    stowage.enable()
    function = compile(source)
    assert [run(function, shared), run(function, separate)] == expected
    assert [phase["state"] for phase in newest_region()["phases"]] == ["planned", "planned"]
    assert [run(function, shared), run(function, separate)] == expected


def test_lists_hold_what_is_in_them():
    source = """
def step(x):
    parts = torch.split(x.exp(), 250)
    pair = [x.sin(), x.cos()]
    joined = torch.cat([parts[1], parts[3]])
    wide = torch.cat([x, x, x]).tanh().sum()
    a, b = torch.chunk(x.neg().exp(), 2)
    return torch.stack(pair).sum() + wide, joined, a * b
"""
    assert_same(source, lambda: (vector(),))


# --- effects ---------------------------------------------------------------------------------------------------------

PRINTS = """
def step(x):
    a = torch.cat([x, x, x]).exp()
    print("first", a.sum().item() > 0)
    x.add_(1)
    b = x.sin()
    print("second", b.numel())
    assert b.numel() == 1000, "size"
    c = (a.sum() + b).cos()
    print("third", c.numel())
    return c
"""


def test_prints_keep_their_order(capfd):
    assert_same(PRINTS, lambda: (vector(),))
    printed = capfd.readouterr().out.splitlines()
    assert printed == ["first True", "second 1000", "third 1000"] * 2 * CALLS


def test_containers_change_in_order():
    source = """
def step(x):
    found: List[torch.Tensor] = []
    table: Dict[str, torch.Tensor] = {}
    a = torch.cat([x, x]).exp()
    found.append(a.sum())
    table["a"] = a * 2
    b = x.sin()
    found.append(b.sum())
    table["a"] = b
    found[0] = found[0] * 2
    return torch.stack(found), table["a"] + 1
"""
    assert_same(source, lambda: (vector(),))


def test_opaque_op_is_a_barrier_and_is_named_once(capfd):
    library = torch.library.Library("stowage_py_test", "DEF")
    library.define("opaque(Tensor x) -> Tensor", alias_analysis="CONSERVATIVE")
    library.impl("opaque", lambda x: x * 2, "CPU")
    source = """
def step(x):
    a = torch.cat([x, x, x]).exp()
    b = torch.ops.stowage_py_test.opaque(x)
    c = torch.ops.stowage_py_test.opaque(b.sin())
    return a.sum() + c
"""
    assert_same(source, lambda: (vector(),))
    told = [line for line in capfd.readouterr().err.splitlines() if "opaque" in line]
    assert len(told) == 1
    assert told[0].startswith("stowage: nothing moves across 'stowage_py_test::opaque' in 'graph")
    assert told[0].endswith("': it has no alias annotation; declare it with a schema to have it planned")


def test_exception_in_mid_step_leaves_the_next_steps_right():
    source = """
def step(x, limit: float):
    a = torch.cat([x, x, x]).exp()
    x.add_(1)
    if float(a.sum()) > limit:
        raise RuntimeError("too large")
    b = a.sin() + torch.cat([x, x, x])
    return b.sum(), x * 2
"""

    def calls(function) -> list:
        seen = []
        for call in range(12):
            torch.manual_seed(call)
            x = vector()
            try:
                with torch.no_grad():
                    result = function(x, -1.0 if call in (4, 7, 9) else 1e30)
            except Exception as error:
                result = "too large" in str(error)
            seen.append([digest(result), digest(x)])
        return seen

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    assert sum(result is True for result, _ in expected) == 3
    assert planned_phase()["last"]["misses"]["busy"]["allocations"] == 0


@pytest.mark.parametrize(
    "raises",
    ["torch.embedding(a.view(20, 150), ids)", "a.view(20, 150)[ids]",
     "torch.index_select(a.view(20, 150), 0, ids)", "torch.gather(a.view(20, 150), 1, ids.view(1, 3) + 100)"],
)
def test_step_that_an_op_refuses_leaves_what_it_leaves_unplanned(raises):
    """Writes and random draws before the bad index have happened, those after it have not."""
    source = f"""
def step(x, y, ids):
    a = torch.cat([x, x, x]).exp()
    x.add_(1)
    d = torch.dropout(a, 0.5, True)
    e = {raises}
    y.mul_(2)
    f = torch.dropout(a + d, 0.5, True)
    s = torch.cat([e.view(-1), a]).sin()
    return s.sum() + f.sum(), x + 1
"""

    def calls(function) -> list:
        seen = []
        for call in range(12):
            torch.manual_seed(call)
            batch = vector(), vector(), torch.tensor([1, 2, 99 if call in (5, 6, 9) else 3])
            try:
                with torch.no_grad():
                    result = digest(function(*batch))
            except (IndexError, RuntimeError):
                result = "refused"
            seen.append([result, digest(batch), digest(torch.get_rng_state())])
        return seen

    expected = calls(compile(source))
    stowage.enable()
    function = compile(source)
    assert calls(function) == expected
    assert [call for call, (result, *_) in enumerate(expected) if result == "refused"] == [5, 6, 9]
    assert planned_phase()["last"]["misses"]["busy"]["allocations"] == 0


# --- what leaves the region ------------------------------------------------------------------------------------------


def test_outputs_that_the_caller_keeps_are_never_overwritten():
    source = """
def step(x):
    a = x.exp()
    b = a.sin()
    c = torch.cat([b, a]).cos()
    return b, c[100:200], a.view(10, 100).t(), x
"""
    assert_same(source, lambda: (vector(),), keep=True, min_hits=0)


def test_kept_views_of_intermediates():
    source = """
def step(x):
    a = torch.cat([x, x]).exp()
    hidden = a * 2
    view = hidden.view(20, 100)[3]
    rest = torch.cat([a, hidden]).tanh()
    return [view, rest.sum()], (hidden.sum(), x.view(10, 100))
"""
    assert_same(source, lambda: (vector(),), keep=True)
