# SPDX-License-Identifier: Apache-2.0
"""Each op of a captured step names, in the store, the module that it comes from and the line in that module's code."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch
from stowage import tracing
from torch import nn
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__)
LINES = HERE.read_text().splitlines()


def at(mark: str) -> str:
    """As a source, the line of this file that ends with the comment `# mark`."""
    found = [number for number, line in enumerate(LINES, 1) if line.endswith(f"  # {mark}")]
    assert len(found) == 1
    return f"{HERE.name}:{found[0]}"


@pytest.fixture
def ops_of(tmp_path):
    """Profiles a captured step into a store; returns its ops as (kind, scope, source), those of the newest run."""

    def profile(model, loss_fn, x, y, optimizer=None, **options):
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        stowage.enable(tmp_path / "run.db", **options)
        try:
            step = stowage.capture(model, loss_fn, optimizer, x, y, strict=True)
            for _ in range(16 if "budget" in options else 6):  # until a plan is followed
                step(x, y)
        finally:
            stowage.disable()
        return read(tmp_path / "run.db", "kind, scope, source")

    return profile


def read(store, columns: str) -> list[tuple]:
    with sqlite3.connect(store) as connection:
        rows = connection.execute(f"SELECT {columns} FROM ops WHERE run_id = (SELECT max(id) FROM runs) ORDER BY op")
        return rows.fetchall()


def scopes(ops: list[tuple]) -> dict[str, list[str]]:
    """By kind, the scopes of its ops in order."""
    found: dict[str, list[str]] = {}
    for kind, scope, _ in ops:
        found.setdefault(kind.removeprefix("aten::"), []).append(scope)
    return found


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.shared = nn.Sigmoid()

    def forward(self, x):
        y = self.shared(self.inner(x))  # inner
        left, right = y.chunk(2, dim=1)  # chunk
        y = torch.cat([right, left], dim=1)  # cat
        return self.shared(y)  # again


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block())
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.blocks(x) * self.scale  # root


def squared(output, target):
    return (output - target).square().sum()  # loss


def test_every_op_names_its_module_and_the_users_line(ops_of):
    inner, chunk, cat, again, root, loss = map(at, ("inner", "chunk", "cat", "again", "root", "loss"))
    ops = ops_of(Net(), squared, torch.randn(4, 8), torch.randn(4, 8))
    assert ops == [
        ("aten::t", "blocks.0.inner.0", inner),
        ("aten::addmm", "blocks.0.inner.0", inner),
        ("aten::tanh", "blocks.0.inner.1", inner),
        ("aten::sigmoid", "blocks.0.shared", inner),
        ("aten::split", "blocks.0", chunk),
        ("prim::ListUnpack", "blocks.0", chunk),
        ("prim::ListConstruct", "blocks.0", cat),
        ("aten::cat", "blocks.0", cat),
        ("aten::sigmoid", "blocks.0.shared", again),
        ("aten::mul", "Net", root),
        ("aten::sub", "loss", loss),
        ("aten::pow", "loss", loss),
        ("aten::sum", "loss", loss),
        # The backward: each op as the forward op whose gradient it computes.
        ("aten::ones_like", "loss", loss),
        ("aten::expand", "loss", loss),
        ("aten::pow", "loss", loss),
        ("aten::mul", "loss", loss),
        ("aten::mul", "loss", loss),
        ("aten::mul", "Net", root),
        ("aten::mul", "Net", root),
        ("aten::sum", "Net", root),
        ("aten::view", "Net", root),
        ("aten::sigmoid_backward", "blocks.0.shared", again),
        ("aten::slice", "blocks.0", cat),
        ("aten::slice", "blocks.0", cat),
        ("prim::ListConstruct", "blocks.0", chunk),
        ("aten::cat", "blocks.0", chunk),
        ("aten::sigmoid_backward", "blocks.0.shared", inner),
        ("aten::tanh_backward", "blocks.0.inner.1", inner),
        ("aten::t", "blocks.0.inner.0", inner),
        ("aten::mm", "blocks.0.inner.0", inner),
        ("aten::sum", "blocks.0.inner.0", inner),
        ("aten::view", "blocks.0.inner.0", inner),
        # The updates: 'optimizer.' and the module that owns the parameter, which no line of the user's names.
        ("aten::add_", "optimizer.Net", ""),
        ("aten::add_", "optimizer.blocks.0.inner.0", ""),
        ("aten::add_", "optimizer.blocks.0.inner.0", ""),
    ]


def test_without_a_line_of_the_users_the_line_is_torchs_own(ops_of):
    ops = ops_of(nn.Sequential(nn.Linear(8, 4)), nn.functional.mse_loss, torch.randn(4, 8), torch.randn(4, 4))
    sources = {kind: (scope, source.partition(":")[0]) for kind, scope, source in ops}
    assert sources["aten::addmm"] == ("0", "linear.py")
    assert sources["aten::mse_loss"] == sources["aten::mse_loss_backward"] == ("loss", "functional.py")
    assert all(int(source.partition(":")[2]) > 1 for _, scope, source in ops if not scope.startswith("optimizer"))


def test_a_loss_that_is_a_module_with_parameters(ops_of):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Linear(4, 4, bias=False)
            self.mse = nn.MSELoss()

        def forward(self, output, target):
            return self.mse(self.gain(output), target)

    loss_fn = Scaled()
    model = nn.Sequential(nn.Linear(8, 4))
    optimizer = torch.optim.SGD([*model.parameters(), *loss_fn.parameters()], lr=0.1)
    found = scopes(ops_of(model, loss_fn, torch.randn(4, 8), torch.randn(4, 4), optimizer))
    assert found["mse_loss"] == ["loss.mse"]
    assert found["mm"] == ["loss.gain", "loss.gain", "loss.gain", "0"]
    assert sorted(found["add_"]) == ["optimizer.0", "optimizer.0", "optimizer.loss.gain"]


def test_gradients_that_the_user_keeps_and_statistics(ops_of):
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    ops = ops_of(model, nn.functional.mse_loss, torch.randn(4, 8), torch.randn(4, 4))
    added = [scope for kind, scope, _ in ops if kind == "aten::add_"]
    assert added[0] == "1"  # num_batches_tracked
    assert added[1:5] == ["0", "0", "1", "1"]
    assert added[5:] == ["optimizer.0", "optimizer.0", "optimizer.1", "optimizer.1"]
    assert all(scope for _, scope, _ in ops)


def test_ops_that_checkpointing_runs_again():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.block = nn.Sequential(nn.Sigmoid(), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.block, self.linear(x), use_reentrant=False)  # checkpoint

    whole = tracing.Whole(Checkpointed(), nn.functional.mse_loss)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    traced = tracing.trace(whole, (x,), y, dict(whole.named_parameters()), {})
    found = {}  # TorchScript merges these repeats, so the store cannot tell
    for node in traced.graph.nodes:
        if origin := node.meta.get("stowage_origin"):
            found.setdefault(node.target.__name__, []).append((origin.scope, f"{origin.file}:{origin.line}"))
    sigmoid, tanh = ("block.0", at("checkpoint")), ("block.1", at("checkpoint"))
    assert found["sigmoid.default"] == [sigmoid, sigmoid]
    assert found["tanh.default"] == [tanh, tanh]
    assert found["sigmoid_backward.default"] == [sigmoid]
    assert found["tanh_backward.default"] == [tanh]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp() * 2  # doubled

    @staticmethod
    def backward(ctx, grad):
        return grad.cos()


def test_a_function_with_a_backward_of_its_own(ops_of):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return Doubled.apply(self.linear(x))

    ops = ops_of(Own(), nn.functional.mse_loss, torch.randn(4, 8), torch.randn(4, 8))
    assert [(scope, source) for kind, scope, source in ops if kind in ("aten::exp", "aten::cos")] == 2 * [
        ("Own", at("doubled"))
    ]


def test_ops_that_run_again_keep_the_origin(ops_of, tmp_path):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))
    x, y = torch.randn(512, 64), torch.randn(512, 64)
    ops_of(model, nn.functional.mse_loss, x, y, budget=0.6)
    ops = read(tmp_path / "run.db", "program_op, kind, scope, source")
    origin = {program_op: rest for program_op, *rest in reversed(ops)}  # of the first execution
    again = [program_op for index, (program_op, *_) in enumerate(ops) if program_op in {op[0] for op in ops[:index]}]
    assert again
    assert all(rest == origin[program_op] and rest[1] for program_op, *rest in ops if program_op is not None)


def test_nothing_is_left_behind():
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer
    from torch.nn.modules import module

    hooks = [name for name in vars(module) if name.startswith("_global_") and name.endswith("hooks")]
    before = PythonKeyTracer.create_node
    model = Net()
    state = [dict(child.__dict__) for child in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stowage.capture(model, squared, optimizer, torch.randn(4, 8), torch.randn(4, 8), strict=True)
    assert hooks and not any(getattr(module, name) for name in hooks)
    assert PythonKeyTracer.create_node is before
    assert [dict(child.__dict__) for child in model.modules()] == state


PROGRAM = """
import json, sys
import stowage, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 10)
    def forward(self, x):
        return self.linear(x).tanh()

stowage.enable(sys.argv[1])
model = Net()
x, y = torch.randn(6, 20), torch.randint(10, (6,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = stowage.capture(model, nn.functional.cross_entropy, optimizer, x, y, strict=True)
losses = [step(x, y).item().hex() for _ in range(6)]
region = stowage.status()["regions"][-1]
print(json.dumps([losses, region["graph_hash"], region["runs_profiled"], region["plans_recalled"]]))
"""


def test_a_program_with_one_more_line_finds_its_plan(tmp_path):
    def run(program: str) -> list:
        (tmp_path / "train.py").write_text(program)
        path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, "train.py", "run.db"], cwd=tmp_path, capture_output=True, text=True,
                              check=True, env={**os.environ, "PYTHONPATH": path})
        return json.loads(done.stdout)

    losses, digest, *_ = first = run(PROGRAM)
    assert first[2:] == [2, 0]
    assert ("aten::tanh", "Net", "train.py:13") in read(tmp_path / "run.db", "kind, scope, source")
    assert run("# A comment moves every line.\n" + PROGRAM) == [losses, digest, 0, 1]
