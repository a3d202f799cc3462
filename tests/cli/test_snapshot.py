# SPDX-License-Identifier: Apache-2.0
"""`stowage snapshot` on snapshots of our own making (case 35), and on those that torch wrote (tests/data/snapshots)."""

import csv
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from cli.sample_store import Stowage
from cli.snapshot_files import DATA, MIB, alloc, block, case_35, event, frame, freed, save, segment, snapshot

from stowage.snapshots.peak import call_sites
from stowage.snapshots.reading import read_snapshot

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules"
COUNTED = json.loads((DATA / "counted.json").read_text())


def explained(stowage: Stowage, path: Path, *options: str) -> list[dict[str, Any]]:
    result = stowage("snapshot", str(path), "--json", *options)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)["devices"]


def test_case_35_the_sum_of_call_sites_is_the_peak(stowage: Stowage, tmp_path: Path) -> None:
    save(tmp_path / "x.pickle", case_35())
    [device] = explained(stowage, tmp_path / "x.pickle")
    assert device["peak"] == {
        "event": 0, "live_bytes": 120, "rounded_bytes": 1024, "before_bytes": 100, "awaiting_bytes": 0,
        "reserved_bytes": 2 * MIB, "call_sites": [{"call_site": "before recording", "size_bytes": 100, "blocks": 1},
                                                  {"call_site": "train.py:7 in step", "size_bytes": 20, "blocks": 1}]}
    assert device["truncated"] is None and device["notes"] == []
    assert device["plan"]["replay"]["most_reserved_bytes"] == 2 * MIB


def test_case_35_told(stowage: Stowage, tmp_path: Path) -> None:
    save(tmp_path / "x.pickle", case_35())
    result = stowage("snapshot", "x.pickle", "--no-plan", "--used", "3MiB")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == """\
device 0: 3 events, 2 blocks
peak       120 B at event 0, 1.00 KiB in the allocator's units
  before   100 B of it was live before the first event
  reserved 2.00 MiB then, 2.00 MiB at most
 size  blocks  call site
100 B       1  before recording
 20 B       1  train.py:7 in step

at the end 2.00 MiB reserved, 512 B allocated, 2.00 MiB free: 0 B could be given back, 2.00 MiB is pinned by live blocks
reserved  allocated      free    pinned  largest free  segments  stream  pool
2.00 MiB      512 B  2.00 MiB  2.00 MiB      2.00 MiB         1  0x0     small
  2.00 MiB free in the segment of 2.00 MiB at 0x1000 is pinned by 512 B before recording
outside    1.00 MiB: what the device had in use at the end less what was reserved
"""


def test_case_35_two_devices_and_a_slice(stowage: Stowage, tmp_path: Path) -> None:
    first = [alloc(0, 700, frame("a.py", 1, "f")), *freed(0, 700), alloc(0, 300, frame("a.py", 2, "f")), *freed(0, 300)]
    second = [alloc(0, 50, frame("b.py", 1, "g"))]
    held = segment(0, 2 * MIB, block(0, 512, 50), device=1)
    path = save(tmp_path / "x.pickle", snapshot([segment(0, 2 * MIB), held], first, second))
    assert [(row["device"], row["peak"]["live_bytes"]) for row in explained(stowage, path)] == [(0, 700), (1, 50)]
    assert [row["device"] for row in explained(stowage, path, "--device", "1")] == [1]
    # From event 1 on, the first block is still there, and keeps its call site.
    [device] = explained(stowage, path, "--device", "0", "--from", "1", "--to", "4")
    assert (device["from"], device["to"], device["memory"]) == (1, 4, None)
    assert (device["peak"]["event"], device["peak"]["before_bytes"]) == (None, 700)
    assert device["peak"]["call_sites"] == [{"call_site": "a.py:1 in f", "size_bytes": 700, "blocks": 1}]
    [device] = explained(stowage, path, "--device", "0", "--from", "3")
    assert (device["peak"]["event"], device["peak"]["live_bytes"], device["memory"]["reserved_bytes"]) == (3, 300, 2 * MIB)
    result = stowage("snapshot", "x.pickle", "--device", "2")
    assert (result.returncode, result.stderr) == (
        2, "stowage: cannot find device 2 in 'x.pickle': it has 0, 1; choose one of these\n")
    result = stowage("snapshot", "x.pickle", "--from", "9")
    assert (result.returncode, result.stderr) == (
        2, "stowage: cannot show events 9 to the last of device 0 in 'x.pickle': it has 6; give --from below --to and below "
           "that\n")


def test_case_35_a_truncated_history_is_flagged(stowage: Stowage, tmp_path: Path) -> None:
    place = frame("a.py", 1, "f")
    # A live block has a stack, so that its allocation was recorded, and lost.
    path = save(tmp_path / "x.pickle", snapshot([segment(0, 2 * MIB, block(0, 512, 9, "active_allocated", place))],
                                                [alloc(512, 5, place), *freed(512, 5)]))
    assert explained(stowage, path)[0]["truncated"] == (
        "the history is cut: 1 live blocks have a call stack but no event; max_entries was too small, or the history was "
        "cleared")
    result = stowage("snapshot", "x.pickle", "--no-plan")
    assert result.stderr.startswith("stowage: device 0: the history is cut: ")
    path = save(tmp_path / "x.pickle", case_35())
    assert explained(stowage, path, "--max-entries", "3")[0]["truncated"] == (
        "the history is full: 3 events, max_entries=3; earlier ones are lost")
    assert explained(stowage, path, "--max-entries", "4")[0]["truncated"] is None
    path = save(tmp_path / "x.pickle", snapshot([], [alloc(number, 5) for number in range(2000)]))
    assert explained(stowage, path, "--no-plan")[0]["truncated"].startswith("the history may be full: it has exactly 2000")


def test_case_35_by_call_site_against_another(stowage: Stowage, tmp_path: Path) -> None:
    save(tmp_path / "a.pickle", case_35())
    more = case_35()
    more["device_traces"][0][0] = alloc(4608, 70, frame("train.py", 9, "step"))
    save(tmp_path / "b.pickle", more)
    result = stowage("snapshot", "a.pickle", "--against", "b.pickle")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == """\
before  120 B at the peak of a.pickle
after   170 B at the peak of b.pickle

before  after  change  device  call site
   0 B   70 B   +70 B       0  train.py:9 in step
  20 B    0 B   -20 B       0  train.py:7 in step
 100 B  100 B     0 B       0  before recording
"""
    found = json.loads(stowage("snapshot", "a.pickle", "--against", "b.pickle", "--json").stdout)
    assert (found["before"], found["after"]) == ("a.pickle", "b.pickle")
    assert found["call_sites"][0] == {"device": 0, "call_site": "train.py:9 in step", "before_bytes": 0, "after_bytes": 70,
                                      "change_bytes": 70}
    rows = list(csv.reader(io.StringIO(stowage("snapshot", "a.pickle", "--against", "b.pickle", "--csv").stdout)))
    assert rows[:2] == [["device", "call_site", "before_bytes", "after_bytes", "change_bytes"],
                        ["0", "train.py:9 in step", "0", "70", "70"]]


def test_case_35_csv(stowage: Stowage, tmp_path: Path) -> None:
    save(tmp_path / "x.pickle", case_35())
    assert stowage("snapshot", "x.pickle", "--csv").stdout == (
        "device,call_site,size_bytes,blocks\n0,before recording,100,1\n0,train.py:7 in step,20,1\n")


@pytest.mark.slow
def test_case_35_a_million_events_take_less_than_ten_seconds(stowage: Stowage, tmp_path: Path) -> None:
    """Of the processor, as other work may run beside the test. Each event has a stack of 30 frames."""
    stack = [frame(f"{TORCH}/m{line}.py", line, "forward") for line in range(29)]
    places = [frame("train.py", line, "step") for line in range(100)]
    history, live = [], []
    for number in range(1_000_000):
        if number % 3 == 0:
            live.append((number * 512, 400 + number % 7))
            history.append(alloc(*live[-1], *stack, places[number % 100]))
        else:
            history.append(event(("free_requested", "free_completed")[number % 3 - 1], *live[-1], *stack, places[0]))
    path = save(tmp_path / "x.pickle", snapshot([], history))
    del history
    start = time.process_time()
    [device] = explained(stowage, path)
    assert time.process_time() - start < 10
    assert (device["to"], device["peak"]["live_bytes"]) == (1_000_000, 406)


def test_the_innermost_frame_outside_torch_names_a_call_site(tmp_path: Path) -> None:
    op = frame("??", 0, "at::_ops::addmm::call(at::Tensor const&)")
    linear = frame("??", 0, "at::_ops::linear::call(at::Tensor const&)")
    torch_frame = frame(f"{TORCH}/linear.py", 134, "forward")
    users = [frame("/project/model.py", 5, "forward"), frame("/project/train.py", 7, "step")]
    gradient = frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>)")
    stacks = [[op, linear, torch_frame, *users], [op, gradient], [op], [torch_frame], [frame("??", 0, "start")], []]
    path = save(tmp_path / "x.pickle", snapshot([], [alloc(number, 512 - number, *stack)
                                                     for number, stack in enumerate(stacks)]))
    [trace] = read_snapshot(str(path))
    assert [row["call_site"] for row in call_sites(trace)] == [
        "model.py:5 in forward: linear", "AddmmBackward0: addmm", "addmm", "linear.py:134 in forward", "inside torch",
        "no stack recorded"]
    assert call_sites(trace, depth=2)[0]["call_site"] == "model.py:5 in forward < train.py:7 in step: linear"


def test_blocks_that_pin_segments_by_stream_and_pool(stowage: Stowage, tmp_path: Path) -> None:
    place = frame("a.py", 1, "f")
    segments = [
        segment(0, 20 * MIB, block(0, 3 * MIB, 3 * MIB, "active_allocated", place), kind="large"),
        segment(20 * MIB, 20 * MIB, kind="large"),
        {**segment(40 * MIB, 40 * MIB, block(40 * MIB, MIB, MIB, "active_awaiting_free"), stream=7, kind="large"),
         "is_expandable": True},
    ]
    [device] = explained(stowage, save(tmp_path / "x.pickle", snapshot(segments)))
    assert [(row["stream"], row["pool"], row["segments"], row["allocated_bytes"], row["awaiting_bytes"], row["free_bytes"],
             row["releasable_bytes"], row["pinned_bytes"], row["largest_free_bytes"]) for row in device["pools"]] == [
        (0, "large", 2, 3 * MIB, 0, 37 * MIB, 20 * MIB, 17 * MIB, 20 * MIB),
        # Of an expandable segment, the second page of 20 MiB could be given back.
        (7, "large", 1, 0, MIB, 39 * MIB, 20 * MIB, 19 * MIB, 39 * MIB),
    ]
    assert [(row["address"], row["pinned_bytes"], row["held_by"]) for row in device["pinned"]] == [
        (40 * MIB, 19 * MIB, [{"call_site": "before recording", "size_bytes": MIB, "blocks": 1}]),
        (0, 17 * MIB, [{"call_site": "a.py:1 in f", "size_bytes": 3 * MIB, "blocks": 1}]),
    ]


def test_settings_that_the_replay_leaves_out_are_told(stowage: Stowage, tmp_path: Path) -> None:
    settings = {"max_split_size": 128 * MIB, "garbage_collection_threshold": 0.0, "roundup_power2_divisions": {"1": 4}}
    save(tmp_path / "x.pickle", {**case_35(), "allocator_settings": settings})
    assert stowage("snapshot", "x.pickle", "--no-plan").stderr == (
        "stowage: device 0: the allocator ran with max_split_size, roundup_power2_divisions, which the replay leaves out\n")


def test_events_that_are_missing_are_told(stowage: Stowage, tmp_path: Path) -> None:
    """The second block lies where the first was never freed, and neither is in a segment at the end."""
    save(tmp_path / "x.pickle", snapshot([segment(0, 2 * MIB)], [alloc(0, 5), alloc(0, 7)]))
    [device] = explained(stowage, tmp_path / "x.pickle", "--no-plan")
    assert device["peak"]["live_bytes"] == 7
    assert device["notes"] == ["1 allocations lie where others were not freed: events are missing",
                               "1 blocks live at the end of the history are in no segment: events are missing"]


@pytest.mark.parametrize("name", COUNTED)
def test_what_torch_wrote_is_what_its_allocator_counted(stowage: Stowage, name: str) -> None:
    devices = explained(stowage, DATA / f"{name}.pickle", "--no-plan")
    counted = [row for row in COUNTED[name]["devices"] if row["reserved_bytes.all.peak"]]
    assert [row["peak"]["live_bytes"] for row in devices] == [row["requested_bytes.all.peak"] for row in counted]
    assert [row["most_reserved_bytes"] for row in devices] == [row["reserved_bytes.all.peak"] for row in counted]
    for device, row in zip(devices, counted, strict=True):
        memory = device["memory"]
        assert sum(site["size_bytes"] for site in device["peak"]["call_sites"]) == device["peak"]["live_bytes"]
        assert memory["reserved_bytes"] == row["reserved_bytes.all.current"]
        assert memory["allocated_bytes"] == row["allocated_bytes.all.current"]
        assert memory["allocated_bytes"] + memory["awaiting_bytes"] == row["active_bytes.all.current"]
        assert memory["reserved_bytes"] == memory["allocated_bytes"] + memory["awaiting_bytes"] + memory["free_bytes"]
        assert device["notes"] == []
        assert (device["truncated"] is None) == (name != "ring")


def test_what_torch_wrote_of_a_training_step(stowage: Stowage) -> None:
    [device] = explained(stowage, DATA / "training.pickle", "--no-plan")
    sites = {row["call_site"]: row["size_bytes"] for row in device["peak"]["call_sites"]}
    assert sites["make_snapshots.py:59 in step: relu"] == 512 * 1024 * 4
    assert sites["ReluBackward0: threshold_backward"] == 512 * 1024 * 4
    assert sites["before recording"] == device["peak"]["before_bytes"]


def test_what_torch_wrote_when_it_ran_out(stowage: Stowage) -> None:
    [device] = explained(stowage, DATA / "ran_out.pickle", "--no-plan", "--total", "2612MiB")
    assert device["ran_out"] == [{"event": 64, "size_bytes": 1100 * MIB, "device_free_bytes": 934 * MIB,
                                  "reserved_bytes": 1166 * MIB}]
    assert device["outside"]["bytes"] == 512 * MIB  # dry CUDA's context
    assert device["pinned"][0]["held_by"] == [
        {"call_site": "make_snapshots.py:104 in <listcomp>", "size_bytes": 990 * MIB, "blocks": 60}]


def test_a_size_that_is_none_is_a_usage_error(stowage: Stowage, tmp_path: Path) -> None:
    result = stowage("snapshot", "x.pickle", "--used", "much")
    assert result.returncode == 2
    assert "'much' is no size; give bytes, or for instance 40GiB" in " ".join(result.stderr.replace("│", " ").split())


def test_it_needs_no_torch(stowage_process: Stowage, tmp_path: Path) -> None:
    shutil.copy(DATA / "training.pickle", tmp_path)
    result = stowage_process("snapshot", "training.pickle", "--json", "--no-plan")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["devices"][0]["to"] == 69
