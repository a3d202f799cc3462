# SPDX-License-Identifier: Apache-2.0
"""The snapshot that `stowage export` makes of a captured step, read by the code that PyTorch ships for snapshots."""

import base64
import copy
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
from stowage.store import Store
from torch.cuda import _memory_viz

TRAIN = """
import torch, stowage
torch.set_num_threads(1)
stowage.enable(store="run.db")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(32, 256), torch.randint(64, (32,))
step = stowage.capture(model, torch.nn.functional.cross_entropy, optimizer, x, y, strict=True)
for _ in range(4):
    step(x, y)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("viewers")
    environment = os.environ | {"PYTHONPATH": str(Path(stowage.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", TRAIN], cwd=folder, env=environment, check=True)
    for arguments in (["-o", "recorded.pickle"], ["-o", "planned.pickle", "--planned"]):
        subprocess.run([sys.executable, "-m", "stowage.cli", "export", "run.db", *arguments], cwd=folder, env=environment,
                       check=True)
    return folder / "run.db"


@pytest.fixture(params=["recorded", "planned"])
def snapshot(request, store):
    return pickle.loads((store.parent / f"{request.param}.pickle").read_bytes())


@pytest.fixture
def run(store):
    with Store(str(store)) as opened:
        return opened.run(None)


def live_at_end(snapshot):
    return [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"]


def test_its_summary_adds_up(snapshot):
    summary = _memory_viz.segsum(snapshot)  # fails where blocks do not fill their segment
    assert f"segments: {len(snapshot['segments'])}\n" in summary
    allocated = sum(block["requested_size"] for block in live_at_end(snapshot))
    assert f"total_allocated: {_memory_viz.Bytes(allocated)}\n" in summary


def test_its_trace_names_the_segment_of_each_allocation(snapshot):
    text = _memory_viz.trace(snapshot)
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert len(re.findall("= cudaMalloc", text)) == len(snapshot["segments"])
    assert len(re.findall(r"^\w+ = \w+\[\d+:", text, re.MULTILINE)) == actions.count("alloc")
    assert "MEM[" not in text  # what lies in no segment


def test_its_flame_graph_holds_what_lives_at_the_end(snapshot):
    lines = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines).splitlines()
    active = [line for line in lines if ";active_allocated;" in line]
    assert sum(int(line.rpartition(" ")[2]) for line in active) == sum(block["size"] for block in live_at_end(snapshot))
    assert any("p_0_weight (parameters)" in line for line in active)
    assert len(_memory_viz.segments(snapshot, format_flamegraph=lambda lines: lines).splitlines()) == len(lines)


@pytest.mark.parametrize("plot", [_memory_viz.trace_plot, _memory_viz.segment_plot])
def test_its_pages_hold_the_snapshot(snapshot, plot):
    files = json.loads(re.search(r"const local_files = (.*)", plot(snapshot))[1])
    assert pickle.loads(base64.b64decode(files[0]["base64"])) == snapshot


def test_without_what_was_freed_the_trace_is_what_lives_at_the_end(snapshot):
    left = _memory_viz.filter_alloc_free_pairs(copy.deepcopy(snapshot))["device_traces"][0]
    assert sorted(event["addr"] for event in left if event["action"] == "alloc") == sorted(
        block["address"] for block in live_at_end(snapshot))
    assert {event["action"] for event in left} == {"segment_alloc", "alloc"}


def test_replayed_it_has_the_peak_of_the_store_and_no_overlap(snapshot, request, run):
    segments = [(segment["address"], segment["address"] + segment["total_size"]) for segment in snapshot["segments"]]
    live, live_bytes, peak_bytes = {}, 0, 0
    for event in snapshot["device_traces"][0]:
        start, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "alloc":
            assert any(first <= start and end <= last for first, last in segments)
            assert all(end <= other or other_end <= start for other, other_end in live.items())
            live[start] = end
            live_bytes += event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(start) == end
            live_bytes -= event["size"]
        peak_bytes = max(peak_bytes, live_bytes)
    planned = "planned" in request.node.callspec.id
    assert peak_bytes == run["planned_peak_bytes" if planned else "unplanned_peak_bytes"]


def test_the_planned_arena_is_one_segment(store, run):
    planned = pickle.loads((store.parent / "planned.pickle").read_bytes())
    arenas = [segment for segment in planned["segments"] if "as planned" in segment["frames"][0]["name"]]
    assert [segment["total_size"] for segment in arenas] == [run["arena_bytes"]]


def test_an_unplanned_layout_says_that_it_is_made_up(store):
    recorded = pickle.loads((store.parent / "recorded.pickle").read_bytes())
    assert all("made up" in segment["frames"][0]["name"] for segment in recorded["segments"])


def test_classes_are_the_viewers_categories(snapshot):
    found = {event["category"] for event in snapshot["device_traces"][0]}
    assert {"parameters", "optimizer state", "batch", "saved activations", "gradients", "workspace"} <= found
    assert "unknown" in found  # without, the viewer fails
