# SPDX-License-Identifier: Apache-2.0
"""`stowage timeline`: the curve, its parts and its events."""

import json
from pathlib import Path

import pytest
from cli.large_store import make_large_store
from cli.sample_store import MIB, STEP, Stowage, change_store, shown_with

NOTE = ("stowage: run 2 'step' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:14:20 UTC\n")
HEADINGS = """\
before planning  16.00 MiB in step 2: op 2 aten::mean 'c' at net.py:9
after planning   13.00 MiB in step 3: op 3 aten::sum 'd'
bound            13.00 MiB: no order needs less

"""


def parsed(stowage: Stowage, *arguments: str) -> dict:
    return json.loads(shown_with(stowage, "timeline", "run.db", *arguments, "--json", note=""))


def test_the_curve(stowage: Stowage, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = shown_with(stowage, "timeline", "run.db", note=NOTE)
    assert text.startswith(HEADINGS)
    plot, table = text.removeprefix(HEADINGS).split("\n\n")
    assert plot.splitlines()[0].strip() == "live MiB over steps: . before, o after, - bound, P peak"
    assert max(map(len, plot.splitlines())) <= 60
    assert [plot.count(mark) for mark in "P┤"] == [3, 7]  # two peaks, and that of the title
    assert table == """\
steps     before  at op               after  at op
    0   7.50 MiB  0 aten::matmul   7.50 MiB  0 aten::matmul
    1  15.00 MiB  1 aten::cat      8.00 MiB  2 aten::mean
    2  16.00 MiB  2 aten::mean    12.00 MiB  1 aten::cat
    3  13.00 MiB  3 aten::sum     13.00 MiB  3 aten::sum
    4   5.00 MiB  4 aten::add      5.00 MiB  4 aten::add
    5   3.00 MiB  5 aten::sub_     3.00 MiB  5 aten::sub_
"""


def test_parts(stowage: Stowage, store: Path) -> None:
    table = shown_with(stowage, "timeline", "run.db", "--limit", "2", note=NOTE).split("\n\n")[-1]
    assert table == """\
steps     before  at op             after  at op
  0-2  16.00 MiB  2 aten::mean  12.00 MiB  1 aten::cat
  3-5  13.00 MiB  3 aten::sum   13.00 MiB  3 aten::sum
"""


def test_json(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage)
    assert (answer["run"]["run_id"], answer["bound_bytes"]) == (2, 13 * MIB + 4)
    assert answer["before"] == {"live_bytes": 16 * MIB + 4, "step": 2, "op": 2}
    assert answer["after"] == {"live_bytes": 13 * MIB + 4, "step": 3, "op": 3}
    assert len(answer["buckets"]) == 6
    assert answer["buckets"][1] == {
        "first_step": 1, "end_step": 2, "before_bytes": 15 * MIB + 4, "before_op": 1, "before_kind": "aten::cat",
        "after_bytes": 8 * MIB + 4, "after_op": 2, "after_kind": "aten::mean"}


def test_csv(stowage: Stowage, store: Path) -> None:
    assert shown_with(stowage, "timeline", "run.db", "--csv", "--limit", "1", note="") == (
        "first_step,end_step,before_bytes,before_op,before_kind,after_bytes,after_op,after_kind\n"
        f"0,6,{16 * MIB + 4},2,aten::mean,{13 * MIB + 4},3,aten::sum\n")


def test_events(stowage: Stowage, store: Path) -> None:
    note = "stowage: 3 of 7 events; --limit 0 shows all\n" + NOTE
    assert shown_with(stowage, "timeline", "run.db", "--events", "--to", "2", "--limit", "3", note=note) == """\
event  step  op              what          change      live  tensor
   -1    -1  -               start       3.00 MiB  3.00 MiB  -
    0     0  0 aten::matmul  allocate    4.00 MiB  7.00 MiB  a
    1     0  0 aten::matmul  allocate  512.00 KiB  7.50 MiB  tensor 4
"""


def test_events_in_the_planned_order(stowage: Stowage, store: Path) -> None:
    events = parsed(stowage, "--events", "--planned", "--from", "1", "--to", "2")["events"]
    assert [(event["step"], event["op"], event["what"], event["name"], event["live_bytes"] // MIB) for event in events] == [
        (1, 2, "allocate", "c", 8), (1, 2, "free", "a", 4), (2, 1, "allocate", "b", 12)]
    assert set(events[0]) == {"event", "step", "op", "kind", "what", "tensor", "name", "change_bytes", "live_bytes"}


def test_a_part_of_the_step(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "--from", "3", "--to", "4")
    assert [row["first_step"] for row in answer["buckets"]] == [3, 4]
    assert answer["before"] == {"live_bytes": 13 * MIB + 4, "step": 3, "op": 3}


def test_some_tensors(stowage: Stowage, store: Path) -> None:
    text = shown_with(stowage, "timeline", "run.db", "--scope", "net", note=NOTE)
    assert text.startswith("before planning  13.00 MiB in step 2")
    assert "bound" not in text  # it is of all tensors
    result = stowage("timeline", "run.db", "--scope", "other", "--min-size", "1MiB")
    assert (result.returncode, result.stdout, result.stderr) == (
        1, "", "stowage: cannot find tensors of run 2 in store 'run.db': none is made in module 'other' and of 1.00 MiB or "
               "more; list them with 'stowage tensors'\n")


def test_a_run_without_a_plan(stowage: Stowage, store: Path) -> None:
    change_store(store, "DELETE FROM plans")
    text = shown_with(stowage, "timeline", "run.db", "--run", "2", note=NOTE)
    assert "after" not in text and "bound" not in text
    assert parsed(stowage, "--run", "2")["buckets"][0]["after_bytes"] is None


def test_nothing_moves_in_a_step_of_a_loop(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP)
    text = stowage("timeline", "run.db", "--run", "4").stdout
    assert text.startswith("before planning  8.00 MiB in step 2: op 2 aten::mm 'mm.0' in MmBackward0\n"
                           "after planning   the same, as nothing moves in a step\n\n")


def test_a_run_without_ops(stowage: Stowage, store: Path) -> None:
    assert stowage("timeline", "run.db", "--run", "3").stdout == (
        "before planning  64 B before the first op\n\nsteps  before  at op\n")


def test_a_long_step(stowage: Stowage, tmp_path: Path) -> None:
    peak_bytes = make_large_store(tmp_path / "run.db", 3000)
    answer = parsed(stowage, "--limit", "7")
    assert [row["end_step"] - row["first_step"] for row in answer["buckets"]] == [428, 429, 428, 429, 428, 429, 429]
    assert max(row["after_bytes"] for row in answer["buckets"]) == answer["after"]["live_bytes"] == peak_bytes


def test_planned_is_of_events(stowage: Stowage, store: Path) -> None:
    result = stowage("timeline", "run.db", "--planned")
    assert result.returncode == 2
    assert "--planned says whose --events to show" in " ".join(result.stderr.split())
