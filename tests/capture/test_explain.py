# SPDX-License-Identifier: Apache-2.0
"""`stowage explain` of steps that were trained, against what the allocator handed out meanwhile."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stowage import roles
from stowage.curve import Curve
from stowage.explaining.graph import GraphExplanation, explain_graph
from stowage.store import Store

TRAINING = Path(__file__).with_name("explained_training.py")


def trained(name: str, store: Path) -> tuple[list[int], GraphExplanation]:
    """The metered peaks of its five steps, and the explanation. In a process of its own, which holds nothing else."""
    done = subprocess.run([sys.executable, TRAINING, name, store], capture_output=True, text=True, check=True)
    with Store(str(store)) as opened:
        return json.loads(done.stdout), explain_graph(opened, opened.step(None))


def rounding(path: Path) -> int:
    """What the slots that live at the planned peak take beyond what they hold: the meter counts whole slots."""
    with Store(str(path)) as store:
        run = store.step(None)
        live = {row["tensor"]: row["size_bytes"] for row in Curve(store, run, planned=True).peak()["tensors"]}
        slots = store.query("SELECT tensor, size_bytes FROM slots WHERE run_id = ?", run["run_id"])
    return sum(slot["size_bytes"] - live[slot["tensor"]] for slot in slots if slot["tensor"] in live)


def has(shares: list, name: str) -> int:
    return sum(share.size_bytes for share in shares if share.name == name)


@pytest.mark.parametrize(("name", "bound_by_weights"), [
    ("alexnet", True), ("resnet18 small", True), ("encoder", True),
    pytest.param("resnet18", False, marks=pytest.mark.slow),
])
def test_the_peaks_are_what_the_allocator_met(name: str, bound_by_weights: bool, tmp_path: Path) -> None:
    metered, found = trained(name, tmp_path / "run.db")
    assert found.after is not None and found.binding is not None and found.proof is not None, found.unproven
    assert found.before.peak_bytes == metered[1]
    assert found.after.peak_bytes + rounding(tmp_path / "run.db") == metered[-1]
    assert found.after.peak_bytes < found.before.peak_bytes
    for side in (found.before, found.after):
        for shares in (side.classes, side.modules):
            assert sum(share.size_bytes for share in shares) == side.peak_bytes
        # Each parameter has a state and a gradient as large as itself.
        assert has(side.classes, roles.PARAMETERS) == has(side.classes, roles.OPTIMIZER_STATE)
        assert has(side.classes, roles.GRADIENTS) <= has(side.classes, roles.PARAMETERS)
    assert found.proof.bound_bytes == found.proof.throughout_bytes + sum(fact["size_bytes"] for fact in found.proof.tensors)
    assert found.proof.bound_bytes <= found.after.peak_bytes
    assert found.changes is not None and found.after.gradients_kept < found.changes.gradients == found.before.gradients_kept
    assert found.binding.is_weights_bound == bound_by_weights
    if name == "alexnet":
        assert found.after.op is not None and found.after.op["kind"] == "aten::mm"  # makes the largest gradient
        assert found.before.modules[0].name.startswith("classifier")
