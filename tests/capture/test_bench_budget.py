# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench budget` on a model that takes a moment, the checkpoints it places, and what it makes of its figures."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch

BENCHMARKS = Path(__file__).parents[2] / "scripts/benchmarks"
MIB = 1 << 20


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("bench_budget", BENCHMARKS / "budget.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_budget", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkpointing(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("measuring.checkpointing")


def run(out: Path, *options: str) -> dict[str, dict]:
    """The rows of the file, by method."""
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, BENCHMARKS / "budget.py", "--tiny", "--devices", "cpu", "--batch", "32", "--threads", "1",
               "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiny_gpt batch 32, cpu" in done.stdout
    return {row["method"]: row for row in json.loads(out.read_text())["rows"]}


@pytest.mark.slow
def test_what_checkpoints_take(tmp_path):
    rows = run(tmp_path / "budget.json", "--methods", "unplanned,planned,checkpoint_block,checkpoint_sqrt", "--pairs", "2")
    assert list(rows) == ["unplanned capture", "planned", "checkpoint per block", "checkpoint sqrt(n)"]
    for row in rows.values():
        assert (row["model"], row["batch"], row["device"], row["why"]) == ("tiny_gpt", 32, "cpu", None)
        assert row["step_time_ratio"] > 0 and row["budget_bytes"] is None
    assert [row["step_time_ratio_to_eager"] is None for row in rows.values()] == [True, True, False, False]
    assert rows["checkpoint per block"]["peak_bytes"] < 0.9 * rows["unplanned capture"]["peak_bytes"]
    # Its two blocks are one segment, which PyTorch keeps whole.
    assert rows["checkpoint sqrt(n)"]["peak_bytes"] > rows["checkpoint per block"]["peak_bytes"]
    planned = rows["planned"]["answer"]
    assert planned["persistent_bytes"] < planned["planned_peak_bytes"] <= planned["unplanned_peak_bytes"]
    # A step that was captured and not planned has live what its record says.
    assert rows["unplanned capture"]["peak_bytes"] == pytest.approx(planned["unplanned_peak_bytes"], rel=0.01)


@pytest.mark.slow
def test_what_budgets_take(tmp_path):
    rows = run(tmp_path / "budget.json", "--methods", "budget,slowdown,budget_at_checkpoint", "--pairs", "2")
    assert list(rows) == ["planned", "checkpoint per block", "budget 0.5 of activations", "slowdown 1.05",
                          "budget at checkpoint's peak"]
    planned, checkpoint, half, slowdown, at_checkpoint = rows.values()
    figures = planned["answer"]
    saved = figures["unplanned_peak_bytes"] - half["budget_bytes"]
    assert 2 * saved == pytest.approx(figures["unplanned_peak_bytes"] - figures["persistent_bytes"], abs=2)
    assert at_checkpoint["budget_bytes"] == checkpoint["peak_bytes"] and slowdown["budget_bytes"] is None
    assert slowdown["predicted_time_ratio"] <= 1.05
    for row in (half, at_checkpoint):
        # A planned step may take less time than the unplanned one, whose memory is new.
        assert row["repeated_ops"] > 0 and row["predicted_time_ratio"] >= row["bound_time_ratio"] > 0
        assert row["peak_bytes"] < planned["peak_bytes"]
        # The meter sees the arena as one block, and the loss that the step before left.
        assert row["peak_bytes"] == pytest.approx(row["answer"]["fitted"]["needed_bytes"], abs=4096)


@pytest.mark.parametrize("change", ["checkpoint_each", "checkpoint_segments"])
def test_checkpoints_change_no_gradient(checkpointing, change):
    from measuring.models import Decoder

    losses, gradients = [], []
    for changed in (False, True):
        torch.manual_seed(0)
        network = Decoder(4, 16, 2, 20, 8)
        if changed:
            getattr(checkpointing, change)(network)
        torch.manual_seed(1)  # for the dropouts
        loss = network(torch.arange(8).view(1, 8)).square().mean()
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad for parameter in network.parameters()])
    assert losses[0] == losses[1]
    assert all(map(torch.equal, *gradients)) and len(gradients[0]) == len(gradients[1])


def test_segments_are_about_the_root_of_the_blocks(checkpointing, monkeypatch):
    from torchvision.models import resnet50

    network = resnet50()
    asked = []
    monkeypatch.setattr(checkpointing, "checkpoint_sequential",
                        lambda blocks, segments, x, use_reentrant: asked.append((len(blocks), segments)) or x)
    checkpointing.checkpoint_segments(network)
    assert len(list(network.layer1)) == 3 and isinstance(network.layer4[2], torch.nn.Identity)
    network.layer1(torch.zeros(1))
    assert asked == [(16, 4)]


def test_a_model_without_known_blocks(checkpointing):
    with pytest.raises(ValueError, match=r"^cannot checkpoint 'ReLU': it has none of the blocks that are known$"):
        checkpointing.checkpoint_each(torch.nn.ReLU())


def rows_of(bench, methods: str) -> list:
    return bench.rows_of(["cpu"], None, None, methods.split(","), tiny=True)


def test_a_method_brings_what_it_is_held_against(bench):
    assert [row.method for row in rows_of(bench, "budget_at_checkpoint,budget")] == [
        "planned", "checkpoint_block", "budget", "budget_at_checkpoint"]


def test_budgets_follow_from_the_figures_of_others(bench):
    rows = rows_of(bench, "budget,budget_at_checkpoint,slowdown")
    by_method = {row.method: row for row in rows}
    by_method["planned"].record({"peak_bytes": 11 * MIB, "persistent_bytes": 2 * MIB, "unplanned_peak_bytes": 12 * MIB})
    by_method["checkpoint_block"].record({"peak_bytes": 9 * MIB, "step_time_ratio": 1.3})
    # Half of the 10 MiB of activations, above the 2 MiB that stay.
    assert bench.budget_of(by_method["budget"], rows) == 7 * MIB
    assert bench.budget_of(by_method["budget_at_checkpoint"], rows) == 9 * MIB
    assert bench.budget_of(by_method["slowdown"], rows) is None


def test_figures_of_a_budget(bench):
    row = bench.Row("tiny_gpt", 4, "budget", "cpu", budget_bytes=7 * MIB)
    row.record({"peak_bytes": 7 * MIB, "step_time_ratio": 1.08, "fitted": {
        "limit_bytes": 7 * MIB, "predicted_time_ratio": 1.06, "bound_time_ratio": 1.02, "repeated_ops": 9, "met": False}})
    found = row.fields()
    assert {name: found[name] for name in ("method", "budget_bytes", "peak_bytes", "step_time_ratio", "bound_time_ratio",
                                           "predicted_time_ratio", "repeated_ops", "failed")} == {
        "method": "budget 0.5 of activations", "budget_bytes": 7 * MIB, "peak_bytes": 7 * MIB, "step_time_ratio": 1.08,
        "bound_time_ratio": 1.02, "predicted_time_ratio": 1.06, "repeated_ops": 9, "failed": False}
    assert bench.remarks(row) == ["its plan is not within the budget"]


def test_what_fails_says_so(bench):
    rows = rows_of(bench, "budget,compiler")
    planned, budget, compiler = rows
    planned.record({"failed": "not planned: no graph met stowage"})
    bench.measure(budget, rows, 0, 1, [])
    compiler.record({"failed": "no C++ compiler"})
    assert [(row.why, row.failed) for row in rows] == [
        ("not planned: no graph met stowage", True), ("it takes figures of 'planned', which failed", True),
        ("no C++ compiler", False)]


def test_no_budget_goes_by_times_where_there_are_none(bench):
    row = bench.Row("gpt2", 8, "slowdown", "dry cuda")
    bench.measure(row, [row], 0, 1, [])
    assert (row.why, row.failed, row.peak_bytes) == ("it goes by measured times, which dry CUDA has not", False, None)
