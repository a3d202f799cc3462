# SPDX-License-Identifier: Apache-2.0
"""`stowage verify`: what it prints and how it ends, for scripts whose plugin says what the test wants, and for real."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EQUAL = {"name": "net", "ops": 12, "executions": 9, "phases": [{"state": "planned"}], "verified_runs": 7,
         "differing_runs": 0, "unverified_runs": 0, "why_unverified": "", "unread_values": 0, "first_difference": None}
TEXT = ("op 3 'relu_3' (aten::relu, net.py:12): output 0 differs from the unplanned run in 12 of 4096 bytes, first at "
        "byte 64; planned run 2")
DIFFERENT = {**EQUAL, "verified_runs": 6, "differing_runs": 1, "first_difference": {"op": 3, "text": TEXT}}
IDLE = {**EQUAL, "verified_runs": 0}

# Stands in for a script that imports torch and loads the plugin.
FAKE = """
import json, os, sys, types
stowage = types.SimpleNamespace(status=lambda: {status!r})
sys.modules["torch"] = types.SimpleNamespace(ops=types.SimpleNamespace(stowage=stowage))
print(os.environ["STOWAGE_VERIFY"], *sys.argv[1:], sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
"""

Verify = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        package = Path(importlib.util.find_spec("stowage").origin).parent  # the one that this test sees
        search = os.pathsep.join((str(package.parent), os.environ.get("PYTHONPATH", "")))
        return subprocess.run([sys.executable, "-m", "stowage.cli", "verify", *arguments], cwd=tmp_path,
                              capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search}, timeout=120)

    return run


def write_script(folder: Path, *regions: dict[str, Any], left_alone: tuple = (), ending: str = "") -> None:
    status = json.dumps({"regions": regions, "left_alone": left_alone})
    (folder / "train.py").write_text(FAKE.format(status=status) + ending)


def test_all_equal(verify: Verify, tmp_path: Path) -> None:
    write_script(tmp_path, EQUAL, {**EQUAL, "name": "head", "verified_runs": 1})
    result = verify("train.py", "--epochs", "3", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "1 --epochs 3 --json True",  # all that follows the script is its own
        "net: 7 planned runs verified, 12 ops each, all equal",
        "head: 1 planned run verified, 12 ops each, all equal",
    ]


def test_difference(verify: Verify, tmp_path: Path) -> None:
    write_script(tmp_path, EQUAL, {**DIFFERENT, "name": "head"})
    result = verify("train.py")
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.splitlines()[1:] == [
        "net: 7 planned runs verified, 12 ops each, all equal",
        f"head: {TEXT}; 1 of 7 planned runs differ",
    ]


def test_what_was_not_compared_is_said(verify: Verify, tmp_path: Path) -> None:
    write_script(tmp_path, {**EQUAL, "unread_values": 2},
                 {**IDLE, "unverified_runs": 4, "why_unverified": "another run had the arena"})
    result = verify("train.py")
    assert result.returncode == 0
    assert result.stdout.splitlines()[1:] == [
        "net: 7 planned runs verified, 12 ops each, all equal; 2 results not compared: no plain tensors on the CPU",
        "net: 4 runs not verified: another run had the arena",
    ]


def test_no_run_that_was_verified_is_no_success(verify: Verify, tmp_path: Path) -> None:
    write_script(tmp_path, {**IDLE, "unverified_runs": 4, "why_unverified": "another run had the arena"})
    assert verify("train.py").returncode == 1


@pytest.mark.parametrize(
    ("regions", "left_alone", "reasons"),
    [
        ([{**IDLE, "phases": [{"state": "profiling"}]}], [], ["net: profiling: run more steps"]),
        ([{**IDLE, "phases": [{"state": "unplanned", "why": "no two runs were alike"}]}], [],
         ["net: unplanned: no two runs were alike"]),
        ([{**IDLE, "phases": []}], [{"name": "f", "ops": 2, "why": "it is small"}],
         ["f: left alone: it is small", "net: 9 runs, none that may be planned: stowage is off, the option plan is, or "
                                        "autograd records what the graph does"]),
        ([], [], ["no TorchScript graph met stowage: call stowage.enable() before the first run of a scripted module, "
                  "or train through stowage.capture"]),
    ],
)
def test_nothing_planned_says_why(
        verify: Verify, tmp_path: Path, regions: list, left_alone: list, reasons: list) -> None:
    write_script(tmp_path, *regions, left_alone=left_alone)
    result = verify("train.py")
    assert (result.returncode, result.stdout) == (1, "1 True\n")
    assert result.stderr.splitlines() == [f"stowage: nothing was verified: {reason}" for reason in reasons]


def test_script_without_stowage(verify: Verify, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    result = verify("train.py")
    assert (result.returncode, result.stdout) == (1, "hello\n")
    assert result.stderr == "stowage: nothing was verified: the script did not load stowage\n"


def test_json(verify: Verify, tmp_path: Path) -> None:
    write_script(tmp_path, EQUAL, DIFFERENT, ending="os.system('echo from another program')")
    result = verify("--json", "train.py")
    assert (result.returncode, result.stderr) == (1, "1 True\nfrom another program\n")
    keys = ("name", "ops", "verified_runs", "differing_runs", "unverified_runs", "why_unverified", "unread_values",
            "first_difference")
    assert json.loads(result.stdout) == {
        "script": "train.py", "script_exit": 0, "all_equal": False, "why_nothing_verified": [],
        "regions": [{key: region[key] for key in keys} for region in (EQUAL, DIFFERENT)],
    }


def test_script_that_fails_is_passed_on(verify: Verify, tmp_path: Path) -> None:
    write_script(tmp_path, EQUAL, ending="def step():\n    raise ValueError('no data')\nstep()")
    result = verify("train.py")
    assert result.returncode == 1
    assert result.stdout.splitlines()[1:] == ["net: 7 planned runs verified, 12 ops each, all equal"]
    told = result.stderr.splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert [line for line in told if line.startswith("  File")] == [
        f'  File "train.py", line {line}, in {name}' for line, name in ((8, "<module>"), (7, "step"))]
    assert told[-2:] == ["ValueError: no data",
                         "stowage: 'train.py' ended with exit code 1; the rest of it was not verified"]


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('no data')", 1)])
def test_exit_code_is_passed_on(verify: Verify, tmp_path: Path, ending: str, code: int) -> None:
    write_script(tmp_path, EQUAL, ending=ending)
    result = verify("train.py")
    assert result.returncode == code
    assert result.stderr.startswith("no data\n" if "data" in ending else "stowage: 'train.py' ended" if code else "")


def test_script_that_cannot_be_read(verify: Verify) -> None:
    result = verify("nowhere.py")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "stowage: cannot read script 'nowhere.py': No such file or directory\n"
    assert verify().returncode == 2


def test_help_shows_an_example(verify: Verify) -> None:
    shown = verify("--help").stdout
    assert "Example: stowage verify train.py --epochs 1" in shown
    assert "printed twice" in " ".join(shown.split())


TRAINING = """
import sys
import stowage, torch
from torch import nn

torch.set_num_threads(1)
stowage.enable()
LIBRARY = torch.library.Library("verify_script", "DEF")
LIBRARY.define("change(Tensor x, Tensor y) -> Tensor")  # says nothing of what it does to x
LIBRARY.impl("change", lambda x, y: x.copy_(y).sum(), "CPU")
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 64), torch.randint(10, (16,))
step = stowage.capture(model, nn.functional.cross_entropy, optimizer, x, y)
for _ in range(8):
    step(x, y)

@torch.jit.script
def tally(q, x):
    a = torch.cat([q, q]).exp()
    huge = torch.cat([q] * 16).tanh() + a.sum()
    changed = torch.ops.verify_script.change(x, huge[:1000])
    product = x * a[:1000]
    return product.sum(), changed

if "--tally" in sys.argv:
    for _ in range(8):
        tally(torch.randn(1000), torch.randn(1000))
"""


@pytest.fixture
def training(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    (tmp_path / "train.py").write_text(TRAINING)


def test_training_is_verified(verify: Verify, training: None) -> None:
    result = verify("train.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Sequential: 5 planned runs verified, ") and result.stdout.endswith(", all equal\n")


def test_wrong_step_of_a_script_is_named(verify: Verify, training: None) -> None:
    result = verify("train.py", "--tally")
    assert result.returncode == 1
    right, wrong = result.stdout.splitlines()
    assert right.startswith("Sequential: 5 planned runs verified, ")
    line = TRAINING[:TRAINING.index("product =")].count("\n") + 1
    assert f"'product.1' (aten::mul, train.py:{line}): output 0 differs from the unplanned run in " in wrong
    assert "; planned run 1; op " in wrong
    assert wrong.endswith("(verify_script::change, train.py:" + str(line - 1) + ") writes 'x.1', which its schema does "
                          "not say; 5 of 5 planned runs differ")
