# SPDX-License-Identifier: Apache-2.0
"""Snapshots that torch writes now, and the simulation of its allocator held against the real one."""

import pytest
import torch
from stowage.snapshots.explaining import Choice, explain
from stowage.snapshots.reading import read_snapshot

MIB = 1 << 20


@pytest.mark.parametrize("kind", ["plain", "expandable"])
@pytest.mark.parametrize("seed", range(3))
def test_the_simulation_reserves_what_the_allocator_does(dry, run_python, seed, kind):
    config = "expandable_segments:True" if kind == "expandable" else ""
    seen = run_python("random_trace.py", str(seed), "450", kind, PYTORCH_ALLOC_CONF=config)
    assert seen["faults"] == []
    assert seen["most_reserved_mib"] == seen["simulated_mib"]
    assert seen["failures"] > 0 and seen["emptied"] > 0  # else the comparison missed what it is for


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_a_snapshot_is_what_the_allocator_counted(tmp_path, stacks):
    kept = torch.empty(100, dtype=torch.uint8, device="cuda")
    device = torch.cuda.current_device()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(stacks=stacks, clear_history=True)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
        for _ in range(3):
            model(torch.randn(128, 64, device="cuda")).square().mean().backward()
        torch.cuda.memory._dump_snapshot(str(tmp_path / "x.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    stats = torch.cuda.memory_stats()
    [trace] = [trace for trace in read_snapshot(str(tmp_path / "x.pickle")) if trace.device == device]
    found = explain(trace, "x", Choice(plan=False))
    assert found["peak"]["live_bytes"] == stats["requested_bytes.all.peak"]
    assert found["most_reserved_bytes"] == stats["reserved_bytes.all.peak"]
    assert found["memory"]["allocated_bytes"] == stats["allocated_bytes.all.current"]
    assert found["peak"]["before_bytes"] >= kept.nbytes
    assert sum(site["size_bytes"] for site in found["peak"]["call_sites"]) == found["peak"]["live_bytes"]
    assert any(site["call_site"].startswith("test_snapshots.py:") for site in found["peak"]["call_sites"])
    assert found["notes"] == []
