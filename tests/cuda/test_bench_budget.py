# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench budget` on CUDA, on a model that takes a moment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device; run under scripts/drycuda")

BENCH = Path(__file__).parents[2] / "scripts/benchmarks/budget.py"


@pytest.mark.slow
def test_bytes_alone_are_taken(tmp_path):
    out = tmp_path / "budget.json"
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    options = ["--tiny", "--devices", "cuda", "--batch", "64", "--methods", "unplanned,planned,checkpoint_block"]
    done = subprocess.run([sys.executable, BENCH, *options, "--out", out], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    is_dry = torch.cuda.get_device_name().endswith("(dry)")
    assert ("tiny_gpt batch 64, dry CUDA, bytes only" in done.stdout) == is_dry
    unplanned, planned, checkpoint = json.loads(out.read_text())["rows"]
    for row in (unplanned, planned, checkpoint):
        assert row["device"] == ("dry cuda" if is_dry else "cuda")
        assert row["why"] is None and row["step_time_ratio"] is None
        assert 0 < row["peak_bytes"] <= row["answer"]["reserved_bytes"]
    assert planned["peak_bytes"] <= unplanned["peak_bytes"]
    # Autograd's thread, which captured steps do without, takes a workspace of cuBLAS for itself.
    assert checkpoint["peak_bytes"] > planned["peak_bytes"]
