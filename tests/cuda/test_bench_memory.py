# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench memory` on models that take a moment."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device; run under scripts/drycuda")

BENCHMARKS = Path(__file__).parents[2] / "scripts/benchmarks"
MIB = 1 << 20


def rows_module():
    spec = importlib.util.spec_from_file_location("rows", BENCHMARKS / "measuring/rows.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rows"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def bench(out, *options):
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, BENCHMARKS / "memory.py", "--tiny", "--out", out, *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_figures_of_a_row(tmp_path):
    out = tmp_path / "memory.json"
    done = bench(out, "--models", "tiny_gpt", "--batches", "4", "--optimizers", "adam")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["dry"] == found["device"].endswith("(dry)") and found["torch"] == torch.__version__
    assert done.stdout.startswith("dry CUDA: ") == found["dry"]
    (row,) = found["rows"]
    assert (row["model"], row["batch"], row["optimizer"], row["reasons"]) == ("tiny_gpt", 4, "adam", {})
    assert row["order_status"] == row["layout_status"] == "optimal"
    for mode in ("eager", "eager_expandable", "captured", "planned"):
        assert 0 < row[f"{mode}_allocated_bytes"] <= row[f"{mode}_reserved_bytes"]
        assert row[f"{mode}_reserved_bytes"] % (2 * MIB) == 0  # the allocator takes segments of 2 MiB and more
    assert row["planned_peak_bytes"] == row["bound_bytes"] <= row["planned_allocated_bytes"]
    assert row["arena_bound_bytes"] == row["arena_bytes"] <= row["planned_allocated_bytes"]
    assert 0 < row["captured_expandable_reserved_bytes"] <= row["captured_reserved_bytes"] + 32 * MIB
    best = min(row["eager_reserved_bytes"], row["eager_expandable_reserved_bytes"])
    saved = 1 - row["planned_reserved_bytes"] / best
    assert found["means"]["all"]["saved_of_best"] == saved
    assert found["means"]["table"]["rows"] == 0  # no model of the table was measured

    before = out.stat().st_mtime_ns
    again = bench(out, "--models", "tiny_gpt", "--batches", "4", "--optimizers", "adam", "--resume")
    assert again.returncode == 0 and json.loads(out.read_text())["rows"] == [row]
    assert out.stat().st_mtime_ns > before  # written anew from what it held


def test_unknown_model_is_a_usage_error(tmp_path):
    done = bench(tmp_path / "memory.json", "--models", "tiny_gpt,nope")
    assert done.returncode == 2
    assert "no model 'nope'; there are tiny_cnn, tiny_gpt" in " ".join(done.stderr.split())


def answer(allocated, reserved):
    return {"device": "H (dry)", "allocated_bytes": allocated, "reserved_bytes": reserved, "capture_seconds": 1.0}


PLAN = {"peak_bytes": 5, "bound_bytes": 5, "arena_bytes": 110, "arena_bound_bytes": 100, "plan_seconds": 0.5,
        "order_status": "optimal", "layout_status": "feasible"}


def measured(row, eager, expandable, planned):
    row.record("captured_expandable", answer(1, planned * 5 // 4))
    row.record("eager", answer(1, eager))
    row.record("expandable", answer(1, expandable))
    row.record("captured", answer(1, eager))
    row.record("planned", answer(1, planned) | PLAN)
    return row


def test_means_of_rows():
    rows = rows_module()
    found = rows.means([measured(rows.Row("a", 1, "sgd", True), 100, 80, 60),
                        measured(rows.Row("b", 1, "sgd", False), 100, 200, 100)])
    assert found["table"] == {"rows": 1, "rows_measured": 1, "saved_of_native": 0.4, "saved_of_best": 0.25,
                              "saved_of_captured": pytest.approx(0.2), "worst_row": ["a", 1, "sgd", 0.25],
                              "arena_waste": pytest.approx(0.1), "arena_waste_max": pytest.approx(0.1)}
    assert (found["all"]["rows"], found["all"]["saved_of_native"], found["all"]["saved_of_best"]) == (2, 0.2, 0.125)
    assert found["all"]["worst_row"] == ["b", 1, "sgd", 0.0]


def test_row_that_ran_out_of_memory_is_no_failure_and_is_kept():
    rows = rows_module()
    row = rows.Row("a", 8, "adam", True)
    row.record("eager", {"out_of_memory": "out of memory with 79.0 GiB reserved"})
    row.record("planned", answer(1, 70) | PLAN)
    assert (row.failed, row.saved_of_native()) == (False, None)
    row.record("captured", {"failed": "not planned: no graph met stowage"})
    assert row.failed
    later = rows.Row("a", 8, "adam", True)
    later.take_over(json.loads(json.dumps(row.fields())))
    assert later.done_modes() == {"eager", "planned"} and not later.failed
