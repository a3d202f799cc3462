# SPDX-License-Identifier: Apache-2.0
"""What `stowage export` writes, read back by the rules of its formats and by `stowage-solve`."""

import csv
import gzip
import json
import os
import pickle
import pickletools
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from cli.sample_store import MIB, ON_CUDA, STEP, Stowage, change_store, shown_with
from cli.written_steps import Graph, Op, write_store

from stowage import solving
from stowage.exporting.formats import ExportError, Format, format_of
from stowage.exporting.memory_viz import FirstFit

#: What PyTorch's viewer can read of a pickle.
VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK",
    "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND", "NEWFALSE", "BINPUT", "BINUNICODE",
    "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM"}
NOTE = ("stowage: run 2 'step' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, 2023-11-14 22:14:20 "
        "UTC\n")
NOTE_4 = ("stowage: run 4 'step on cpu' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
          "2023-11-14 22:16:20 UTC\n")


def exported(stowage: Stowage, store: Path, name: str, *arguments: str, note: str = NOTE) -> bytes:
    out = shown_with(stowage, "export", "run.db", "-o", name, "--force", *arguments, note=note)
    content = (store.parent / name).read_bytes()
    assert out.startswith(f"wrote {name}: ")
    assert [path.name for path in store.parent.iterdir() if path.name.endswith(".tmp")] == []
    return content


def table(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(content.decode().splitlines()))


def check_trace(content: bytes) -> list[dict[str, Any]]:
    """Checks what the Trace Event Format demands, and returns the events."""
    trace = json.loads(content)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    ends: dict[tuple[int, int], int] = {}  # in nanoseconds
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and type(event["pid"]) is int and type(event["tid"]) is int
        if event["ph"] == "M":
            argument = {"process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index",
                        "thread_name": "name", "thread_sort_index": "sort_index"}[event["name"]]
            assert isinstance(event["args"][argument], int if argument == "sort_index" else str)
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            # Slices of a thread may nest, and these do not even do that.
            start, duration = round(1000 * event["ts"]), round(1000 * event["dur"])
            assert duration >= 0 and start >= ends.get((event["pid"], event["tid"]), 0)
            ends[event["pid"], event["tid"]] = start + duration
            assert ("thread_name", event["pid"], event["tid"]) in named
        elif event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values()) and event["args"]
        else:
            assert event["ph"] == "i" and event["s"] in ("g", "p", "t")
        assert ("process_name", event["pid"], 0) in named
    return trace["traceEvents"]


def counter(events: list[dict[str, Any]], process: int, name: str) -> list[tuple[float, int]]:
    return [(event["ts"], event["args"]["bytes"]) for event in events
            if event["ph"] == "C" and event["pid"] == process and event["name"] == name]


def slices(events: list[dict[str, Any]], process: int) -> dict[str, list[tuple[str, float, float]]]:
    """By the name of the thread."""
    names = {event["tid"]: event["args"]["name"] for event in events
             if event["name"] == "thread_name" and event["pid"] == process}
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == process:
            found[names[event["tid"]]].append((event["name"], event["ts"], event["dur"]))
    return dict(found)


def test_a_trace_shows_the_run_as_recorded_and_as_planned(stowage: Stowage, store: Path) -> None:
    events = check_trace(exported(stowage, store, "run.trace.json"))
    assert slices(events, 1) == {"ops": [
        ("aten::matmul", 0, 2000), ("aten::cat", 2000, 1500), ("aten::mean", 3500, 40.5), ("aten::sum", 3600, 0.9),
        ("aten::add", 3700, 0.8), ("aten::sub_", 3800, 0.7)]}
    assert [(name, start) for name, start, _ in slices(events, 2)["ops"]] == [
        ("aten::matmul", 0), ("aten::mean", 2000), ("aten::cat", 2040.5), ("aten::sum", 3540.5), ("aten::add", 3541.4),
        ("aten::sub_", 3542.2)]
    # MiB as in sample_store.py; the allocation and the free of op 2, with 40.5 us, are a third of that apart.
    live = counter(events, 1, "live")
    assert [size // (MIB // 2) / 2 for _, size in live] == [3, 7, 7.5, 7, 15, 16, 12, 13, 5, 5, 4, 3]
    assert [time for time, _ in live[5:7]] == [3513.5, 3527]
    assert max(size for _, size in counter(events, 2, "live")) == 13 * MIB + 4
    assert [size for _, size in counter(events, 2, "bound")] == [13 * MIB + 4] * 2
    assert [event["name"] for event in events if event["ph"] == "i"] == ["peak: 16.00 MiB", "peak: 13.00 MiB"]


def test_a_planned_trace_has_the_plan_alone(stowage: Stowage, store: Path) -> None:
    events = check_trace(exported(stowage, store, "run.trace.json", "--planned"))
    assert {event["pid"] for event in events} == {1}
    assert max(size for _, size in counter(events, 1, "live")) == 13 * MIB + 4


def test_a_trace_has_kernels_and_copies_on_their_streams(stowage: Stowage, store: Path) -> None:
    change_store(store, ON_CUDA)
    note = NOTE.replace("on cpu", "on GPU").replace("steady_clock", "cupti")
    note += "stowage: CUPTI and the allocator disagree on 1 of 3 allocations\n"
    found = slices(check_trace(exported(stowage, store, "run.trace.json", note=note)), 1)
    assert [name for name, *_ in found["stream 7"]] == [
        "gemm", "gemm", "split", "copy set", "copy device_to_device", "reduce", "reduce"]


def test_a_captured_step_has_a_thread_for_each_phase(stowage: Stowage, tmp_path: Path) -> None:
    ops = [Op("mm", "aten::mm", ("input_0", "p_w"), makes={"mm": 100}),
           Op("loss", "aten::sum", ("mm",), makes={"loss": 4}),
           Op("mm_1", "aten::mm", ("mm", "input_0"), makes={"gw": 40}),
           Op("add__w", "aten::add_", ("p_w", "gw"), ("p_w",))]
    write_store(tmp_path / "run.db", Graph({"input_0": (64, ""), "p_w": (40, "")}, ops))
    assert stowage("export", "run.db", "-o", "run.trace.json").returncode == 0
    found = slices(check_trace((tmp_path / "run.trace.json").read_bytes()), 1)
    assert {name: [kind for kind, *_ in each] for name, each in found.items()} == {
        "forward": ["aten::mm", "aten::sum"], "backward": ["aten::mm"], "update": ["aten::add_"]}


def test_ops_that_overlap_have_threads_of_their_own(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP + "UPDATE ops SET start_ns = 600 WHERE run_id = 4 AND op = 2")
    found = slices(check_trace(exported(stowage, store, "run.trace.json", "--run", "4", note=NOTE_4)), 1)
    assert {name: [kind for kind, *_ in ops] for name, ops in found.items()} == {
        "ops": ["aten::zero_", "aten::linear", "outside"], "ops 2": ["aten::mm"]}


def test_a_run_without_a_plan_has_one_process(stowage: Stowage, store: Path) -> None:
    note = NOTE.replace("run 2", "run 3").replace("22:14:20", "22:15:20")
    events = check_trace(exported(stowage, store, "run.trace.json", "--run", "3", note=note))
    assert counter(events, 1, "live") == [(0, 64)]
    assert counter(events, 1, "bound") == []


def test_a_trace_may_be_compressed(stowage: Stowage, store: Path) -> None:
    content = exported(stowage, store, "run.trace.json.gz")
    assert check_trace(gzip.decompress(content)) == check_trace(exported(stowage, store, "run.trace.json"))


@pytest.mark.parametrize("planned", [(), ("--planned",)])
def test_a_snapshot_is_a_pickle_that_the_viewer_reads(stowage: Stowage, store: Path, planned: tuple[str, ...]) -> None:
    content = exported(stowage, store, "run.pickle", *planned)
    opcodes = list(pickletools.genops(content))
    assert {opcode.name for opcode, *_ in opcodes} <= VIEWER_OPCODES
    assert [argument for opcode, argument, _ in opcodes if opcode.name == "PROTO"] == [4]


def test_a_planned_step_begins_with_what_the_step_before_left(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP)
    snapshot = pickle.loads(exported(stowage, store, "run.pickle", "--run", "4", "--planned", note=NOTE_4))
    arena = snapshot["segments"][0]["address"]
    assert snapshot["segments"][0]["total_size"] == 12 * MIB
    found = [(event["action"], (event["addr"] - arena) / MIB) for event in snapshot["device_traces"][0]
             if event["action"] in ("alloc", "free_completed")]
    # The gradient lies at 8 MiB in every second step. What has no slot is in the next segment.
    assert found[:-1] == [("alloc", 8), ("free_completed", 8), ("alloc", 0), ("alloc", 4), ("alloc", 2),
                          ("free_completed", 2), ("free_completed", 0)]
    assert found[-1] == ("alloc", (snapshot["segments"][1]["address"] - arena) / MIB)
    assert [block["state"] for block in snapshot["segments"][0]["blocks"]] == ["inactive", "active_allocated", "inactive"]


def test_first_fit_takes_the_lowest_place_and_merges_what_is_freed() -> None:
    fit = FirstFit()
    assert [fit.allocate(size) for size in (10, 20, 30)] == [0, 10, 30]
    fit.free(0, 10)
    fit.free(30, 30)
    assert fit.allocate(12) == 30
    assert fit.allocate(10) == 0
    fit.free(10, 20)
    fit.free(30, 12)  # between two free ranges
    assert fit.allocate(60) == 10  # the last free range grows
    assert fit.size_bytes == 70


def solve(*arguments: str) -> dict[str, Any]:
    try:
        program = solving.solver()
    except solving.SolverError:
        pytest.skip("stowage-solve is not installed")
    result = subprocess.run([str(program), *arguments, "--json"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_buffers_of_the_recorded_run(stowage: Stowage, store: Path) -> None:
    content = exported(stowage, store, "run.minimalloc.csv")
    assert content.decode() == f"""\
id,lower,upper,size,alignment
3,1,6,{4 * MIB},64
4,2,3,{MIB // 2},64
5,4,8,{8 * MIB},64
6,5,10,{MIB},64
7,7,11,{MIB},64
"""
    # 4 + 8 + 1 MiB live at once.
    found = solve("layout", str(store.parent / "run.minimalloc.csv"))
    assert found["bound_bytes"] == 13 * MIB


def test_buffers_of_the_plan_lie_where_it_lays_them(stowage: Stowage, store: Path) -> None:
    rows = table(exported(stowage, store, "run.minimalloc.csv", "--planned"))
    assert [(row["id"], row["offset"]) for row in rows] == [
        ("3", "0"), ("4", str(4 * MIB)), ("6", str(8 * MIB)), ("5", "0"), ("7", str(9 * MIB))]
    found = solve("layout", str(store.parent / "run.minimalloc.csv"))
    assert found["height_bytes"] == 10 * MIB  # the arena of the plan


def test_buffers_of_a_step_count_what_the_step_before_left(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP)
    rows = table(exported(stowage, store, "run.minimalloc.csv", "--run", "4", "--planned", note=NOTE_4))
    # The gradient lies at 8 MiB in every second step.
    assert [(row["id"], row["lower"], row["upper"], int(row["offset"]) // MIB) for row in rows] == [
        ("1-before", "0", "1", 8), ("0", "2", "6", 0), ("1", "3", "8", 4), ("2", "4", "5", 2)]
    assert solve("layout", str(store.parent / "run.minimalloc.csv"))["height_bytes"] == 12 * MIB


def test_a_step_is_planned_as_it_was(stowage: Stowage, store: Path) -> None:
    step = json.loads(exported(stowage, store, "run.step.json"))
    assert (step["format"], step["name"], len(step["ops"])) == ("stowage-step/1", "step", 6)
    found = solve("order", str(store.parent / "run.step.json"))
    assert found["program_peak_bytes"] == 16 * MIB + 4
    assert found["peak_bytes"] == 12 * MIB + 4  # b, d and then a: better than the plan in the store, which is made up


def test_a_table_of_ops(stowage: Stowage, store: Path) -> None:
    rows = table(exported(stowage, store, "run.csv", "--planned"))
    assert [(row["op"], row["kind"], int(row["live_bytes"]) // MIB) for row in rows[:3]] == [
        ("0", "aten::matmul", 7), ("2", "aten::mean", 8), ("1", "aten::cat", 12)]


def test_a_table_of_tensors(stowage: Stowage, store: Path) -> None:
    rows = table(exported(stowage, store, "run.csv", "--table", "tensors", "--planned"))
    assert [(row["name"], row["size_bytes"], row["class"], row["offset_bytes"]) for row in rows[:3]] == [
        ("b", str(8 * MIB), "temporaries", "0"), ("a", str(4 * MIB), "temporaries", "0"), ("w", str(2 * MIB), "inputs", "")]


def test_json_says_what_was_written(stowage: Stowage, store: Path) -> None:
    found = json.loads(shown_with(stowage, "export", "run.db", "--format", "step", "--json", note=""))
    assert (found["format"], found["file"], found["run"]["run_id"]) == ("step", "run.step.json", 2)
    assert found["size_bytes"] == (store.parent / "run.step.json").stat().st_size


@pytest.mark.parametrize(("name", "format"), [
    ("a.pickle", Format.MEMORY_VIZ), ("A.PKL", Format.MEMORY_VIZ), ("a.csv", Format.CSV),
    ("a.minimalloc.csv", Format.MINIMALLOC), ("a.step.json", Format.STEP), ("a.step.json.gz", Format.STEP),
    ("a.trace.json", Format.PERFETTO), ("step.json.gz", None), ("a.json", None), ("csv", None), ("folder.csv/a", None)])
def test_a_name_says_the_format(name: str, format: Format | None) -> None:
    if format is not None:
        assert format_of(name) is format
        return
    with pytest.raises(ExportError) as refused:
        format_of(name)
    assert str(refused.value) == (f"cannot tell a format from the name of '{name}': add --format "
                                  "perfetto|memory-viz|minimalloc|step|csv")


def refusal(stowage: Stowage, exit_code: int, *arguments: str) -> str:
    result = stowage("export", "run.db", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (exit_code, "", 1)
    return result.stderr.removeprefix("stowage: ").rstrip("\n")


def test_a_file_is_replaced_only_when_asked(stowage: Stowage, store: Path) -> None:
    (store.parent / "a.csv").write_text("mine")
    assert refusal(stowage, 2, "-o", "a.csv") == "cannot write 'a.csv': it exists; add --force to replace it"
    assert (store.parent / "a.csv").read_text() == "mine"
    assert exported(stowage, store, "a.csv").startswith(b"step,op,name")


def test_a_folder_is_not_replaced(stowage: Stowage, store: Path) -> None:
    (store.parent / "a.csv").mkdir()
    assert refusal(stowage, 2, "-o", "a.csv", "--force") == "cannot write 'a.csv': it is a folder; name a file in it"


def test_a_link_is_followed(stowage: Stowage, store: Path) -> None:
    (store.parent / "real.csv").write_text("old")
    (store.parent / "a.csv").symlink_to("real.csv")
    exported(stowage, store, "a.csv")
    assert (store.parent / "a.csv").is_symlink()
    assert (store.parent / "real.csv").read_text().startswith("step,op,name")


def test_what_cannot_be_written_is_refused_in_a_line(stowage: Stowage, store: Path) -> None:
    assert refusal(stowage, 2) == "cannot export: neither --format nor -o FILE says what; give one"
    assert refusal(stowage, 2, "-o", "no/a.csv") == "cannot write 'no/a.csv': its folder does not exist; make it first"
    assert refusal(stowage, 2, "-o", "/dev/null", "--format", "csv", "--force") == (
        "cannot write '/dev/null': it is no regular file; choose another path")
    assert refusal(stowage, 2, "-o", "a.csv.gz") == (
        "cannot write 'a.csv.gz': files of format csv are not read from gzip; leave .gz out")
    assert refusal(stowage, 2, "-o", "a.step.json", "--planned") == (
        "cannot export a plan as step: that is the problem, not its answer; leave --planned out")
    assert refusal(stowage, 2, "-o", f"{'a' * 250}.csv") == (
        f"cannot write '{'a' * 250}.csv': file name too long; choose another path")
    assert [name for name in os.listdir(store.parent) if not name.startswith("run.db")] == []


def test_what_the_store_does_not_hold_is_refused_in_a_line(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP)
    assert refusal(stowage, 1, "--format", "step", "--run", "4") == (
        "cannot export run 4 of store 'run.db' as step: it is a step of a loop, of which nobody knows which op uses what; "
        "its layout goes to --format minimalloc")
    assert refusal(stowage, 1, "--format", "step", "--run", "1") == (
        "cannot export run 1 of store 'run.db' as step: it ended early, so that nothing can be planned from it; profile "
        "again")
    assert refusal(stowage, 1, "--format", "minimalloc", "--run", "3") == (
        "cannot export run 3 of store 'run.db' as minimalloc: it allocates nothing that an arena would hold; choose another "
        "from 'stowage info'")
    assert refusal(stowage, 1, "--format", "csv", "--run", "3", "--planned") == (
        "cannot show the plan of run 3 in store 'run.db': it has none; choose a planned run from 'stowage info'")


def test_a_damaged_store_is_refused_in_a_line(stowage: Stowage, store: Path) -> None:
    change_store(store, "INSERT INTO points VALUES (2, 9, 'free', 5, 7, NULL)")
    assert refusal(stowage, 1, "--format", "memory-viz", "--planned") == (
        "cannot read run 2 of store 'run.db': tensor 7 is freed by op 5, where it does not live; the file is damaged: move "
        "it away and profile again")


def test_export_needs_no_torch(stowage_process: Stowage, store: Path) -> None:
    for each in Format:
        result = stowage_process("export", "run.db", "--format", each.value)
        assert (result.returncode, result.stderr) == (0, NOTE)
