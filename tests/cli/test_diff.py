# SPDX-License-Identifier: Apache-2.0
"""`stowage diff`: two runs by call site."""

import json
from pathlib import Path

import pytest
from cli.large_store import make_large_store
from cli.sample_store import MIB, STEP, Stowage, change_store, make_store, shown_with

from stowage.comparing import class_changes, peak_of, site_changes, stem
from stowage.store import Store

NOTE = ("stowage: run 2 'step' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:14:20 UTC\n")
# As after an edit of the script: b is half as large, c is made by another op, and a's op has another number.
CHANGED = f"""
    UPDATE allocations SET requested_bytes = {4 * MIB} WHERE tensor = 5;
    UPDATE tensors SET size_bytes = {4 * MIB} WHERE tensor = 5;
    UPDATE ops SET kind = 'aten::amax', name = 'c_1' WHERE op = 2;
    UPDATE ops SET name = 'a_7.0' WHERE op = 0;
    UPDATE runs SET peak_bytes = {12 * MIB + 4} WHERE id = 2;
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.db"
    make_store(path)
    change_store(path, CHANGED)
    return path


def parsed(stowage: Stowage, *arguments: str) -> dict:
    return json.loads(shown_with(stowage, "diff", *arguments, "--json", note=""))


def test_what_grew_and_shrank(stowage: Stowage, store: Path, other: Path) -> None:
    assert shown_with(stowage, "diff", "run.db", "other.db:2", note=2 * NOTE) == """\
a  run.db:2  16.00 MiB at op 2 aten::mean 'c' at net.py:9
b  other.db:2  12.00 MiB at op 2 aten::amax 'c_1' at net.py:9
b's peak is 4.00 MiB lower, 25.0 %

   change          a         b  tensors  class
        -        4 B       4 B        1  constants
        -   3.00 MiB  3.00 MiB        2  inputs
-4.00 MiB  13.00 MiB  9.00 MiB        3  temporaries

   change         a         b  tensors            call site     where
-4.00 MiB  8.00 MiB  4.00 MiB        1  shrank    aten::cat b   net net.py:8
+1.00 MiB       0 B  1.00 MiB   0 to 1  appeared  aten::amax c  net net.py:9
-1.00 MiB  1.00 MiB       0 B   1 to 0  vanished  aten::mean c  net net.py:9
"""


def test_what_is_cut_is_summed_up(stowage: Stowage, store: Path, other: Path) -> None:
    text = shown_with(stowage, "diff", "other.db", "run.db", "--limit", "1",
                      note="stowage: 1 of 3 call sites; --limit 0 shows all\n" + 2 * NOTE)
    assert text.splitlines()[2] == "b's peak is 4.00 MiB higher, 33.3 %"
    assert [line.split()[:2] for line in text.splitlines()[-2:]] == [["+4.00", "MiB"], ["-", "2"]]


def test_json(stowage: Stowage, store: Path, other: Path) -> None:
    answer = parsed(stowage, "run.db", "other.db")
    assert (answer["a"]["store"], answer["b"]["run"]["run_id"], answer["planned"]) == ("run.db", 2, False)
    assert answer["change_bytes"] == -4 * MIB == answer["b"]["peak"]["live_bytes"] - answer["a"]["peak"]["live_bytes"]
    assert answer["sites"][0] == {
        "change": "shrank", "change_bytes": -4 * MIB, "a_bytes": 8 * MIB, "b_bytes": 4 * MIB, "a_tensors": 1, "b_tensors": 1,
        "kind": "aten::cat", "scope": "net", "source": "net.py:8", "name": "b"}
    assert answer["by_class"][1] == {"class": "inputs", "change_bytes": 0, "a_bytes": 3 * MIB, "b_bytes": 3 * MIB,
                                     "a_tensors": 2, "b_tensors": 2}


def test_csv(stowage: Stowage, store: Path, other: Path) -> None:
    lines = shown_with(stowage, "diff", "run.db", "other.db", "--csv", note="").splitlines()
    assert lines[0] == "change,change_bytes,a_bytes,b_bytes,a_tensors,b_tensors,kind,scope,source,name"
    assert lines[1] == f"shrank,{-4 * MIB},{8 * MIB},{4 * MIB},1,1,aten::cat,net,net.py:8,b"
    assert len(lines) == 4


def test_the_planned_peaks(stowage: Stowage, store: Path, other: Path) -> None:
    answer = parsed(stowage, "run.db", "other.db", "--planned")
    assert (answer["a"]["peak"]["live_bytes"], answer["b"]["peak"]["live_bytes"]) == (13 * MIB + 4, 9 * MIB + 4)
    assert sum(row["change_bytes"] for row in answer["sites"]) == -4 * MIB


@pytest.mark.parametrize("planned", [False, True])
def test_the_changes_add_up(tmp_path: Path, store: Path, planned: bool) -> None:
    """Of unlike steps, one of them of a loop: to the byte."""
    make_large_store(tmp_path / "large.db", 600)
    change_store(store, STEP)
    peaks = []
    for path, run_id in ((store, 2), (store, 4), (tmp_path / "large.db", 1)):
        with Store(str(path)) as opened:
            run = opened.run(run_id)
            peaks.append(peak_of(opened, run, planned))
            stated = run["planned_peak_bytes" if planned else "unplanned_peak_bytes"]
            assert peaks[-1].where["live_bytes"] == stated
    for a in peaks:
        for b in peaks:
            difference = b.where["live_bytes"] - a.where["live_bytes"]
            assert sum(row["change_bytes"] for row in site_changes(a, b)) == difference
            classes = class_changes(a, b)
            assert sum(row["change_bytes"] for row in classes) == difference
            assert sum(row["a_bytes"] for row in classes) == a.where["live_bytes"]
            assert all((row["change_bytes"] > 0) == (row["change"] in ("grew", "appeared")) for row in site_changes(a, b))


def test_a_run_and_itself(stowage: Stowage, store: Path) -> None:
    text = shown_with(stowage, "diff", "run.db:2", "run.db:2", note=2 * NOTE)
    assert text.splitlines()[2] == "both peaks are the same"
    assert "call site" not in text


def test_a_file_whose_name_looks_like_a_run(stowage: Stowage, store: Path) -> None:
    store.rename(store.with_name("run:3"))
    assert parsed(stowage, "run:3", "run:3:3")["b"]["run"]["run_id"] == 3


@pytest.mark.parametrize(("b", "error"), [
    ("none.db", "cannot open store 'none.db': no such file; check the path"),
    ("run.db:9", "cannot find run 9 in store 'run.db': it has runs 1 to 3; list them with 'stowage info'"),
    ("run.db:", "cannot open store 'run.db:': no such file; check the path"),
])
def test_what_is_not_there(stowage: Stowage, store: Path, b: str, error: str) -> None:
    result = stowage("diff", "run.db", b)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"stowage: {error}\n")


@pytest.mark.parametrize(("name", "expected"), [
    ("convolution_backward_1.0", "convolution_backward"), ("view_87", "view"), ("add__layer2_1_conv2_weight_1",
                                                                                "add__layer2_1_conv2_weight"),
    ("w.1", "w"), ("123", ""), ("loss", "loss"), ("input0", "input0"),
])
def test_names_without_their_numbers(name: str, expected: str) -> None:
    assert stem(name) == expected
