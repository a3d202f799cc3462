# SPDX-License-Identifier: Apache-2.0
"""What lives at an op, in a part of the step, of a module or of a size: `tensors --at`, and the filters."""

import json
from pathlib import Path

import pytest
from cli.large_store import make_large_store
from cli.sample_store import MIB, STEP, Stowage, change_store, shown_with

from stowage.curve import Choice, Curve
from stowage.store import Store
from stowage.text import parse_size

NOTE = ("stowage: run 2 'step' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:14:20 UTC\n")


def parsed(stowage: Stowage, *arguments: str) -> dict:
    return json.loads(shown_with(stowage, *arguments, "--json", note=""))


def names(rows: list[dict]) -> list[str]:
    return [row["name"] for row in rows]


# --- the figures -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("script", ["", STEP, "UPDATE tensors SET size_bytes = 67108864 WHERE kind = 'workspace'; "
                                    "UPDATE allocations SET requested_bytes = 67108864, rounded_bytes = 67108864 "
                                    "WHERE tensor = 4"])
def test_the_curve_agrees_with_the_views(store: Path, script: str) -> None:
    change_store(store, script)
    with Store(str(store)) as opened:
        for run in opened.runs():
            for planned in (False, True)[:1 + (run["planned_peak_bytes"] is not None)]:
                curve = Curve(opened, run, planned)
                peak = curve.peak()
                view, live_view = ("planned_peak", "live_at_planned_peak") if planned else ("peak", "live_at_peak")
                assert (peak["live_bytes"], peak["op"]) == tuple(
                    opened.query(f"SELECT live_bytes, op FROM {view} WHERE run_id = ?", run["run_id"])[0].values())
                assert peak["tensors"] == opened.query(f"SELECT tensor, name, kind, size_bytes FROM {live_view} WHERE run_id = ? "
                                                       "ORDER BY size_bytes DESC, tensor", run["run_id"])
                live = [curve.highest(step, step)["live_bytes"] for step in range(len(curve.ops))]
                if run["kind"] == "graph":
                    assert live == [op["live_bytes"] for op in opened.ops(run, planned)]


def test_what_lives_at_each_op_adds_up_to_its_live_bytes(tmp_path: Path) -> None:
    peak_bytes = make_large_store(tmp_path / "run.db", 400)
    with Store(str(tmp_path / "run.db")) as opened:
        curve = Curve(opened, opened.run(1), planned=True)
        for op in range(400):
            moment = curve.at(op)
            assert sum(row["size_bytes"] for row in curve.live_at(moment["number"])) == moment["live_bytes"]
        assert (curve.peak()["live_bytes"], curve.peak()["op"]) == (peak_bytes, 200)


def test_threads_side_by_side(store: Path) -> None:
    """Op 2 allocates before op 1 does, and what nobody watched (op 3) between the two."""
    change_store(store, STEP + """
        UPDATE allocations SET free_event = 6, allocate_event = 3 WHERE run_id = 4 AND tensor = 0;
        UPDATE allocations SET allocate_event = 1 WHERE run_id = 4 AND tensor = 1;
        UPDATE allocations SET free_event = 5, allocate_event = 4 WHERE run_id = 4 AND tensor = 2;
        UPDATE allocations SET allocate_event = 2 WHERE run_id = 4 AND tensor = 3""")
    with Store(str(store)) as opened:
        curve = Curve(opened, opened.run(4), planned=False)
        assert [curve.highest(step, step)["live_bytes"] for step in range(4)] == [
            4 * MIB, 6 * MIB + 65536, 8 * MIB + 65536, 4 * MIB + 65536]


@pytest.mark.parametrize(("scope", "has"), [
    ("layer1", ["layer1", "layer1.0.conv"]), ("layer1.0", ["layer1.0.conv"]), ("", ["", "layer1", "layer1.0.conv", "layer10"]),
    ("layer", []), ("layer10", ["layer10"]),
])
def test_a_module_and_its_parts(scope: str, has: list[str]) -> None:
    assert [each for each in ("", "layer1", "layer1.0.conv", "layer10") if Choice(scope=scope).has(each, 0)] == has


def test_sizes() -> None:
    assert [parse_size(text) for text in ("0", "4096", "64KiB", "1.5 GiB", "2 mib")] == [0, 4096, 65536, 3 << 29, 2 * MIB]
    for text in ("", "MiB", "-1", "1 MB", "1e3", "nan"):
        with pytest.raises(ValueError, match="is no size; give 4096, 64KiB or 1.5GiB"):
            parse_size(text)


# --- tensors -----------------------------------------------------------------------------------------------------

def test_what_lives_while_an_op_runs(stowage: Stowage, store: Path) -> None:
    assert shown_with(stowage, "tensors", "run.db", "--at", "2", note=NOTE) == """\
16.00 MiB live in step 2: op 2 aten::mean 'c' at net.py:9
    size  tensor  class        lives         allocated by    scope   last used by  dtype  shape
8.00 MiB  b       temporaries  op 1 to op 3  1 aten::cat     net     3 aten::sum   Float  [2048, 1024]
4.00 MiB  a       temporaries  op 0 to op 2  0 aten::matmul  net.fc  2 aten::mean  Float  [1024, 1024]
2.00 MiB  w       inputs       throughout    -                       5 aten::sub_  Float  [1024, 512]
1.00 MiB  x       inputs       throughout    -                       1 aten::cat   Float  [512, 512]
1.00 MiB  c       temporaries  op 2 to op 4  2 aten::mean    net     4 aten::add   Float  [512, 512]
     4 B  lr      constants    throughout    -                       -             Float  []
"""


def test_what_lives_while_an_op_runs_in_the_planned_order(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "tensors", "run.db", "--at", "2", "--planned")
    assert answer["planned"] is True
    assert answer["at"] == {"step": 1, "op": 2, "name": "c", "kind": "aten::mean", "scope": "net", "source": "net.py:9",
                            "live_bytes": 8 * MIB + 4}
    assert names(answer["tensors"]) == ["a", "w", "x", "c", "lr"]
    assert sum(row["size_bytes"] for row in answer["tensors"]) == answer["at"]["live_bytes"]


def test_a_tensor_that_lives_twice_counts_twice(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP + "UPDATE carried SET free_op = 2, free_event = 7 WHERE run_id = 4")
    answer = parsed(stowage, "tensors", "run.db", "--at", "2")
    assert [(row["name"], row["size_bytes"] // MIB) for row in answer["tensors"]] == [
        ("mm.0", 8), ("linear.0", 2), ("mm.0/1", 2)]


@pytest.mark.parametrize(("options", "left"), [
    (["--from", "3"], ["b", "w", "x", "c", "d", "lr", "loss"]), (["--to", "0"], ["a", "w", "x", "", "lr"]),
    (["--from", "5", "--to", "5"], ["w", "x", "lr", "loss"]), (["--min-size", "2MiB"], ["b", "a", "w"]),
    (["--scope", "net.fc"], ["a", ""]), (["--scope", "net"], ["b", "a", "c", ""]), (["--scope", "n"], []),
    (["--at", "2", "--min-size", "4MiB"], ["b", "a"]),
])
def test_tensors_by_part_module_and_size(stowage: Stowage, store: Path, options: list[str], left: list[str]) -> None:
    assert names(parsed(stowage, "tensors", "run.db", *options)["tensors"]) == left


# --- ops, peak ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("options", "left"), [
    (["--from", "4"], ["loss", "w.1"]), (["--planned", "--from", "1", "--to", "2"], ["c", "b"]),
    (["--scope", "net", "--min-size", "4MiB"], ["a", "b"]),
])
def test_ops_by_part_module_and_size(stowage: Stowage, store: Path, options: list[str], left: list[str]) -> None:
    assert names(parsed(stowage, "ops", "run.db", *options)["ops"]) == left


def test_the_peak_of_a_part(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "peak", "run.db", "--from", "4", "--to", "5")
    for side in ("before", "after"):
        assert (answer[side]["op"], answer[side]["live_bytes"]) == (4, 5 * MIB + 8)
        assert names(answer[side]["tensors"]) == ["w", "x", "c", "d", "lr", "loss"]


def test_a_part_begins_with_what_lives_there(stowage: Stowage, store: Path) -> None:
    before = parsed(stowage, "peak", "run.db", "--from", "5")["before"]
    assert (before["step"], before["op"], before["live_bytes"]) == (5, 5, 3 * MIB + 8)


def test_the_peak_of_some_tensors(stowage: Stowage, store: Path) -> None:
    assert shown_with(stowage, "peak", "run.db", "--scope", "net", "--min-size", "4MiB", note=NOTE) == """\
before planning: 12.00 MiB in step 1: op 1 aten::cat 'b' at net.py:8
     size  tensors  class
12.00 MiB        2  temporaries
biggest:
    size  tensor  class
8.00 MiB  b       temporaries
4.00 MiB  a       temporaries

after planning: 8.00 MiB in step 2: op 1 aten::cat 'b' at net.py:8
    size  tensors  class
8.00 MiB        1  temporaries
biggest:
    size  tensor  class
8.00 MiB  b       temporaries
"""


@pytest.mark.parametrize(("arguments", "error"), [
    (["tensors", "--at", "9"], "cannot find op 9 in run 2 of store 'run.db': it has ops 0 to 5; list them with 'stowage ops'"),
    (["peak", "--from", "6"], "cannot show step 6 of run 2 in store 'run.db': it has 6 ops, the first is 0; list them with "
                              "'stowage ops'"),
])
def test_what_is_not_there(stowage: Stowage, store: Path, arguments: list[str], error: str) -> None:
    result = stowage(arguments[0], "run.db", *arguments[1:])
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"stowage: {error}\n")


@pytest.mark.parametrize(("arguments", "error"), [
    (["tensors", "--planned"], "--planned says when what --at OP asks for is live; give both"),
    (["ops", "--from", "4", "--to", "3"], "--from 4 is after --to 3"),
    (["peak", "--min-size", "six"], "'six' is no size; give 4096, 64KiB or 1.5GiB"),
])
def test_options_that_make_no_sense(stowage: Stowage, store: Path, arguments: list[str], error: str) -> None:
    result = stowage(arguments[0], "run.db", *arguments[1:])
    assert result.returncode == 2
    assert error in " ".join(result.stderr.split())
