# SPDX-License-Identifier: Apache-2.0
"""The option `verify`: what is right is found equal, what is wrong is found where it begins."""

import ctypes
import re
from typing import Callable, Dict, List

import pytest
import stowage
import torch
import torchvision
from planning import compile, digest, newest_region, plan_text, run
from torch import nn

LIBRARY = torch.library.Library("stowage_verify", "DEF")
counts = iter(range(10**6))
noticed: list[tuple[int, int]] = []


def set_unsaid(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes `x`, of which its schema says nothing: what reads `x` may be moved across it."""
    x.copy_(y)
    return x.sum()


def divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not y.all():
        raise ValueError("cannot divide by zero")
    return x / y


for name, function in {"set_unsaid": set_unsaid, "divide": divide}.items():
    LIBRARY.define(f"{name}(Tensor x, Tensor y) -> Tensor")
    LIBRARY.impl(name, function, "CPU")
def notice(x: torch.Tensor) -> torch.Tensor:
    noticed.append((x.data_ptr(), x.nbytes))
    return x + 1


LIBRARY.define("notice(Tensor x) -> Tensor")
LIBRARY.impl("notice", notice, "CPU")
LIBRARY.define("count(Tensor x) -> Tensor")
LIBRARY.impl("count", lambda x: x + next(counts), "CPU")


@pytest.fixture(autouse=True)
def verify():
    yield
    stowage.set_option("verify", "0")


def vector(size: int = 1000) -> torch.Tensor:
    return torch.randn(size)


def assert_verified(source: str, make_inputs: Callable[[], tuple], runs: int = 5) -> None:
    """All planned runs are found equal, and what they leave behind is what the unplanned ones do."""
    unplanned = run(compile(source), make_inputs)
    stowage.enable(verify=True)
    function = compile(source)
    assert run(function, make_inputs) == unplanned
    region = newest_region()
    assert region["phases"][0]["runs"] == region["verified_runs"] == runs, region
    assert (region["differing_runs"], region["unverified_runs"], region["first_difference"]) == (0, 0, None)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 7) -> list:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = stowage.capture(model, nn.functional.cross_entropy, optimizer, x, y, strict=True)
    return [digest(step(x, y)) for _ in range(steps)] + [digest(model.state_dict()), digest(torch.get_rng_state())]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(392, 10)
    )


class Reader(nn.Module):
    """A layer whose workspace is never wholly written, and one that has no running statistics to write."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.norm = nn.InstanceNorm1d(7)
        self.out = nn.Linear(16, 10)

    def forward(self, x):
        return self.out(self.norm(self.lstm(x)[0]).mean(1))


@pytest.mark.parametrize(
    ("make_model", "shape"),
    [
        (perceptron, (16, 64)),
        (convolutions, (4, 3, 16, 16)),
        (Reader, (4, 7, 8)),
        (torchvision.models.resnet18, (2, 3, 64, 64)),
    ],
)
def test_training_is_equal_and_goes_on_as_without(make_model, shape):
    torch.manual_seed(0)
    first, x, y = make_model(), torch.randn(shape), torch.randint(10, shape[:1])
    second = make_model()
    second.load_state_dict(first.state_dict())
    stowage.enable()
    expected = train(first, x, y)
    served = stowage.status()["regions"][-1]["phases"][0]["last"]
    stowage.enable(verify=True)
    assert train(second, x, y) == expected
    region = stowage.status()["regions"][-1]
    assert (region["verified_runs"], region["first_difference"], region["unread_values"]) == (4, None, 0)
    assert region["phases"][0]["last"] == served, "the checks change what the allocator sees"
    name = region["name"]
    assert f"{name}: 4 planned runs verified, {region['ops']} ops each, all equal" in stowage.report().splitlines()


def test_views_branches_loops_and_changes_in_place():
    source = """
def step(x, n: int):
    a = torch.cat([x, x]).exp().view(20, 100)
    b = a.t()[::3].mul_(2)
    c = torch.dropout(a.expand(3, 20, 100), 0.5, True)
    parts = torch.chunk(c, 3)
    if bool(x.sum() > 0):
        d = parts[0].sin()
    else:
        d = parts[1]
    for i in range(n):
        d = d + b.sum() * i
    x.mul_(0.5)
    return d, b, c.numel(), x.sum()
"""
    assert_verified(source, lambda: (vector(), 3))


def test_memory_that_is_never_written():
    source = """
def step(x):
    a = torch.cat([x, x]).exp()
    b = torch.empty_like(a)
    view = b[:1000]
    view.copy_(x)
    c = torch.empty([0])
    c.resize_([500])
    c.fill_(2)
    d = a.new_empty([300])
    e = a.sin() + a
    return view + 1, b, c * 2, d, e.sum()
"""
    stowage.enable(verify=True)
    function = compile(source)
    for _ in range(8):
        function(vector())
    assert (newest_region()["verified_runs"], newest_region()["first_difference"]) == (5, None)


def script_recorder() -> torch.jit.ScriptModule:
    class Recorder(nn.Module):  # here, so that TorchScript compiles it anew
        def __init__(self):
            super().__init__()
            self.steps = 0
            self.register_buffer("seen", torch.zeros(1000))
            self.last = torch.zeros(1000)

        def forward(self, x, found: List[torch.Tensor], named: Dict[str, torch.Tensor]):
            a = torch.cat([x, x]).exp()
            b = a.sin() + a
            self.steps += 1
            self.seen.add_(x)
            self.last = b[:1000] + self.seen
            found.append(b.sum() + self.steps)
            named["last"] = found[-1] + named["last"]
            return torch.cat([b, a]).cos().sum()

    return torch.jit.script(Recorder())


def test_containers_and_objects_are_put_back():
    def calls(module) -> list:
        found = []
        for call in range(8):
            # A list of another length would be another signature.
            parts, named = [torch.zeros([])], {"last": torch.ones([])}
            found += [module(torch.full((1000,), float(call)), parts, named), parts, named]
        return [digest(found), digest(module.seen), digest(module.last), module.steps]

    with torch.no_grad():
        expected = calls(script_recorder())
        stowage.enable(verify=True)
        module = script_recorder()
        assert calls(module) == expected
    assert newest_region()["verified_runs"] > 0 and newest_region()["first_difference"] is None


def test_freed_memory_is_poisoned():
    source = """
def step(x):
    a = x.exp()
    b = torch.ops.stowage_verify.notice(a)
    c = b.sum()
    return c + 1, x.sum()
"""
    stowage.set_option("poison", "0")
    stowage.enable(verify=True)
    function = compile(source)
    run(function, lambda: (vector(),))
    assert newest_region()["verified_runs"] == 5
    assert ctypes.string_at(*noticed[-1]).endswith(3000 * b"\xff")  # small results may have come to lie before


# --- what is wrong ---------------------------------------------------------------------------------------------------

# To have the product before the large tensors pays: it frees `a`. But it reads what `set_unsaid` writes.
UNSAID = """
def step(q, x):
    a = torch.cat([q, q]).exp()
    huge = torch.cat([q] * 16).tanh() + a.sum()
    s = torch.ops.stowage_verify.set_unsaid(x, huge[:1000])
    r = (x * a[:1000]).sum()
    return r, s, x + 0
"""


def test_op_that_runs_on_the_wrong_side_of_a_write_is_named(capfd):
    unplanned = run(compile(UNSAID), lambda: (vector(), vector()))
    stowage.enable(verify=True)
    function = compile(UNSAID)
    assert run(function, lambda: (vector(), vector())) == unplanned, "the unplanned results are given"
    plan = plan_text()
    assert plan.index("aten::mul(%x.1") < plan.index("stowage_verify::set_unsaid"), "the plan is not wrong"
    region = newest_region()
    found = region["first_difference"]
    assert (found["kind"], found["source"], found["what"]) == ("aten::mul", "<string>:6", "output 0")
    assert (found["size_bytes"], found["planned_run"], found["by_itself"]) == (4000, 1, False)
    assert (region["verified_runs"], region["differing_runs"]) == (0, 5)
    text = (
        f"op {found['op']} '{found['name']}' (aten::mul, <string>:6): output 0 differs from the unplanned run in "
        f"{found['differing_bytes']} of 4000 bytes, first at byte {found['first_byte']}; planned run 1"
    )
    assert found["text"] == text
    assert re.fullmatch(
        r"op \d+ 's.1' \(stowage_verify::set_unsaid, <string>:5\) writes 'x.1', which its schema does not say",
        found["cause"],
    )
    assert f"{region['name']}: {text}; {found['cause']}; 5 of 5 planned runs differ" in stowage.report().splitlines()
    told = capfd.readouterr().err
    assert told.count(text) == 1 and "reads 'a.1' at [" in told and told.endswith("; the unplanned results are given\n")


def test_bytes_that_differ_are_counted():
    """`set_unsaid` changes two elements only."""
    source = UNSAID.replace("huge[:1000]", "huge[:1000] * 0 + mark").replace("q, x", "q, x, mark", 1)

    def inputs() -> tuple:
        mark = torch.zeros(1000)
        mark[7:9] = 1.0
        return torch.zeros(1000), torch.zeros(1000), mark

    stowage.enable(verify=True)
    function = compile(source)
    run(function, inputs)
    found = newest_region()["first_difference"]
    # 0.0 and 1.0 differ in the two upper bytes of four.
    assert (found["kind"], found["differing_bytes"], found["first_byte"]) == ("aten::mul", 4, 7 * 4 + 2)


def test_op_that_is_no_function_of_its_inputs_is_named_and_said_to_be():
    source = """
def step(x):
    a = torch.cat([x, x]).exp()
    b = torch.ops.stowage_verify.count(a)
    c = torch.cat([b, b, a]).sin()
    return c.sum() + a.sum()
"""
    stowage.enable(verify=True)
    function = compile(source)
    run(function, lambda: (vector(),))
    found = newest_region()["first_difference"]
    assert (found["kind"], found["by_itself"]) == ("stowage_verify::count", True)
    assert "two unplanned runs differ there, too" in found["text"]
    assert "cause" not in found


def test_plan_that_raises_where_the_program_does_not():
    source = UNSAID.replace("(x * a[:1000])", "torch.ops.stowage_verify.divide(a[:1000], x)")

    def inputs() -> tuple:
        return vector(), torch.zeros(1000)  # which set_unsaid overwrites

    unplanned = run(compile(source), inputs)
    stowage.enable(verify=True)
    function = compile(source)
    assert run(function, inputs) == unplanned
    region = newest_region()
    assert (region["verified_runs"], region["differing_runs"]) == (0, 5)
    assert re.fullmatch(
        r"the planned run raised an error, the unplanned one did not: ValueError: cannot divide by zero "
        r"\(after op \d+ '\w+' \(aten::slice, <string>:6\)\); planned run 1",
        region["first_difference"]["text"],
    )


def test_run_that_raises_is_passed_on():
    source = """
def step(x, limit: float):
    a = torch.cat([x, x]).exp()
    b = torch.cat([a, a]).sin()
    if float(b[0]) > limit:
        raise ValueError("too large")
    x.add_(1)
    return b.sum() + a.sum()
"""
    stowage.enable(verify=True)
    function = compile(source)
    with torch.no_grad():
        for _ in range(6):
            function(vector(), 2.0)
        x = vector()
        before = digest(x)
        with pytest.raises(torch.jit.Error, match="too large"):
            function(x, -2.0)
        assert digest(x) == before
        function(vector(), 2.0)
    assert (newest_region()["verified_runs"], newest_region()["first_difference"]) == (4, None)


def test_input_that_gets_other_memory_is_not_verified_and_says_why():
    source = """
def step(x, y):
    a = torch.cat([x, x]).exp()
    b = torch.cat([a, a]).sin()
    y.resize_([3000])
    y.fill_(1)
    return b.sum() + a.sum() + y
"""
    unplanned = run(compile(source), lambda: (vector(), vector(1)))
    stowage.enable(verify=True)
    function = compile(source)
    assert run(function, lambda: (vector(), vector(1))) == unplanned
    region = newest_region()
    assert (region["verified_runs"], region["unverified_runs"], region["first_difference"]) == (0, 5, None)
    assert region["why_unverified"] == "the run gives 'y.1' other memory"
