# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench loops` on a model that takes a moment, and what it makes of its figures."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stowage

BENCHMARKS = Path(__file__).parents[2] / "scripts/benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("bench_loops", BENCHMARKS / "loops.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_loops", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_an_eager_loop_on_the_cpu(tmp_path):
    out = tmp_path / "loops.json"
    options = ["--tiny", "--devices", "cpu", "--models", "tiny_gpt", "--optimizers", "adamw", "--loops", "keeping",
               "--only-eager", "--out", out]
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, BENCHMARKS / "loops.py", *options], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["faults"] == [] and row["identical"] == {"eager,planned": True}
    assert row["ratios"]["eager,planned"] <= 1.01
    followed = row["modes"]["eager,planned"]["followed"]
    assert followed["missed_bytes"] == {} and followed["hit_bytes"] == followed["bytes"] > 0
    assert followed["arena_bytes"] < row["modes"]["eager,planned"]["reserved_bytes"]  # the meter sees the weights, too


def answer(reserved: int, losses: str = "a", state: str = "b") -> dict:
    return {"allocated_bytes": reserved, "reserved_bytes": reserved, "losses": losses, "state": state, "device": "cpu",
            "followed": {"arena_bytes": 1 << 20, "arena_bound_bytes": 1 << 20, "missed_bytes": {"busy": 1 << 21}}}


def test_faults_of_a_row(bench):
    case = bench.Case("cpu", "tiny_gpt", 4, "sgd", "keeping", "")
    good = bench.Row(case, {"eager": answer(1000), "eager,planned": answer(1010)})
    assert good.faults() == [] and good.ratio("eager,planned") == 1.01

    large = bench.Row(case, {"eager": answer(1000), "scripted": answer(1200), "scripted,planned": answer(1020)})
    assert large.faults() == ["scripted,planned: +2.0%; arena 1.0 MiB, its bound 1.0 MiB, missed: 2.0 MiB busy"]

    # With another setting of the allocator it is no more than it may be.
    twin = bench.Row(case, {"eager": answer(1000), "scripted": answer(1200), "scripted,planned": answer(1005)})
    assert large.faults([twin]) == []

    other = bench.Row(case, {"eager": answer(1000), "eager,planned": answer(1000, state="c")})
    assert other.faults() == ["eager,planned: not the losses or weights of the unplanned loop"]
    assert other.is_same("eager,planned") is False

    broken = bench.Row(case, {"eager": answer(1000), "eager,planned": {"failed": "no answer in 3 s"}})
    assert broken.faults() == ["eager,planned: no answer in 3 s"] and broken.ratio("eager,planned") is None


def test_figures_without_results_are_not_compared(bench):
    case = bench.Case("cuda", "gpt2", 8, "sgd", "keeping", "native")
    row = bench.Row(case, {"eager": answer(1000), "eager,planned": answer(1000, losses="c")})
    assert row.is_same("eager,planned") is None and row.faults() == []
