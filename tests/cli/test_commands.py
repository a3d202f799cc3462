# SPDX-License-Identifier: Apache-2.0
"""What the commands print for the store of sample_store.py, exactly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.sample_store import MIB, ROOT, Stowage, change_store, shown_with

from stowage.curve import Curve
from stowage.store import Store, moved_ops
from stowage.text import date, duration, printable, size

NOTE = ("stowage: run 2 'step' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:14:20 UTC\n")


def shown(stowage: Stowage, *arguments: str, note: str = NOTE) -> str:
    return shown_with(stowage, *arguments, note=note)


def parsed(stowage: Stowage, *arguments: str) -> object:
    return json.loads(shown(stowage, *arguments, "--json", note=""))


def test_info(stowage: Stowage, store: Path) -> None:
    expected = f"""\
store    run.db (schema 6, {store.stat().st_size / 1024:.2f} KiB)
stowage  0.1.0
torch    2.11.0
device   cpu
clock    steady_clock
sizes    as the allocator recorded them
dropped  12 records
date     2023-11-14 22:15:20 UTC

run  kind   name  ops  unplanned peak  planned peak   saved      bound      arena  status
  1  graph  eval    0            64 B             -       -          -          -  not planned: ended early
  2  graph  step    6       16.00 MiB     13.00 MiB  18.7 %  13.00 MiB  10.00 MiB  order optimal, layout optimal
  3  graph  step    0            64 B             -       -          -          -  not planned
"""
    assert shown(stowage, "info", "run.db", note="") == expected


def test_info_says_why_a_run_is_not_planned(stowage: Stowage, store: Path) -> None:
    change_store(store, "UPDATE runs SET complete = 1 WHERE id = 1")
    assert "not planned: 12 records dropped\n" in shown(stowage, "info", "run.db", note="")


def test_info_keeps_the_newest_runs(stowage: Stowage, store: Path) -> None:
    out = shown(stowage, "info", "run.db", "--limit", "1", note="stowage: 1 of 3 runs; --limit 0 shows all\n")
    assert [line.split()[:3] for line in out.splitlines()[9:]] == [["run", "kind", "name"], ["3", "graph", "step"]]


def test_ops(stowage: Stowage, store: Path) -> None:
    assert shown(stowage, "ops", "run.db") == """\
step  op      time  allocated       freed       live  kind          name  source
   0   0   2.00 ms   4.50 MiB  512.00 KiB   7.50 MiB  aten::matmul  a     net.py:7
   1   1   1.50 ms   8.00 MiB         0 B  15.00 MiB  aten::cat     b     net.py:8
   2   2  40.50 us   1.00 MiB    4.00 MiB  16.00 MiB  aten::mean    c     net.py:9
   3   3    900 ns   1.00 MiB    8.00 MiB  13.00 MiB  aten::sum     d
   4   4    800 ns        4 B    2.00 MiB   5.00 MiB  aten::add     loss
   5   5    700 ns        0 B         0 B   3.00 MiB  aten::sub_    w.1
"""


def test_ops_in_the_planned_order(stowage: Stowage, store: Path) -> None:
    assert shown(stowage, "ops", "run.db", "--planned") == """\
step  op      time  allocated       freed       live  kind          name  source
   0   0   2.00 ms   4.50 MiB  512.00 KiB   7.50 MiB  aten::matmul  a     net.py:7
   1   2  40.50 us   1.00 MiB    4.00 MiB   8.00 MiB  aten::mean    c     net.py:9
   2   1   1.50 ms   8.00 MiB         0 B  12.00 MiB  aten::cat     b     net.py:8
   3   3    900 ns   1.00 MiB    8.00 MiB  13.00 MiB  aten::sum     d
   4   4    800 ns        4 B    2.00 MiB   5.00 MiB  aten::add     loss
   5   5    700 ns        0 B         0 B   3.00 MiB  aten::sub_    w.1
"""


def test_ops_limited(stowage: Stowage, store: Path) -> None:
    out = shown(stowage, "ops", "run.db", "--limit", "2", note="stowage: 2 of 6 ops; --limit 0 shows all\n" + NOTE)
    assert [line.split()[1] for line in out.splitlines()] == ["op", "0", "1"]


def test_tensors(stowage: Stowage, store: Path) -> None:
    assert shown(stowage, "tensors", "run.db") == """\
      size  tensor    class        lives         allocated by    scope   last used by  dtype  shape
  8.00 MiB  b         temporaries  op 1 to op 3  1 aten::cat     net     3 aten::sum   Float  [2048, 1024]
  4.00 MiB  a         temporaries  op 0 to op 2  0 aten::matmul  net.fc  2 aten::mean  Float  [1024, 1024]
  2.00 MiB  w         inputs       throughout    -                       5 aten::sub_  Float  [1024, 512]
  1.00 MiB  x         inputs       throughout    -                       1 aten::cat   Float  [512, 512]
  1.00 MiB  c         temporaries  op 2 to op 4  2 aten::mean    net     4 aten::add   Float  [512, 512]
  1.00 MiB  d         temporaries  op 3 to op 4  3 aten::sum             4 aten::add   Float  [512, 512]
512.00 KiB  tensor 4  workspace    op 0 to op 0  0 aten::matmul  net.fc  -
       4 B  lr        constants    throughout    -                       -             Float  []
       4 B  loss      outputs      op 4 to end   4 aten::add             5 aten::sub_  Float  []
"""


def test_peak(stowage: Stowage, store: Path) -> None:
    assert shown(stowage, "peak", "run.db") == """\
before planning: 16.00 MiB in step 2: op 2 aten::mean 'c' at net.py:9
     size  tensors  class
13.00 MiB        3  temporaries
 3.00 MiB        2  inputs
      4 B        1  constants
biggest:
    size  tensor  class
8.00 MiB  b       temporaries
4.00 MiB  a       temporaries
2.00 MiB  w       inputs
1.00 MiB  x       inputs
1.00 MiB  c       temporaries
     4 B  lr      constants

after planning: 13.00 MiB in step 3: op 3 aten::sum 'd'
     size  tensors  class
10.00 MiB        3  temporaries
 3.00 MiB        2  inputs
      4 B        1  constants
biggest:
    size  tensor  class
8.00 MiB  b       temporaries
2.00 MiB  w       inputs
1.00 MiB  x       inputs
1.00 MiB  c       temporaries
1.00 MiB  d       temporaries
     4 B  lr      constants

bound: no order needs less than 13.00 MiB
"""


def test_peak_of_a_run_that_allocates_nothing(stowage: Stowage, store: Path) -> None:
    note = NOTE.replace("run 2", "run 3").replace("22:14:20", "22:15:20")
    assert shown(stowage, "peak", "run.db", "--run", "3", note=note) == """\
before planning: 64 B before the first op
size  tensors  class
64 B        1  inputs
biggest:
size  tensor  class
64 B  x       inputs
"""


def test_peak_tells_of_a_plan_that_its_replay_contradicts(stowage: Stowage, store: Path) -> None:
    change_store(store, "DELETE FROM points WHERE kind = 'free' AND tensor = 3")  # a is never freed
    note = f"stowage: the plan states a peak of {13 * MIB + 4} B, its events replayed have {17 * MIB + 4} B\n"
    shown(stowage, "peak", "run.db", note=NOTE + note)


def test_plan(stowage: Stowage, store: Path) -> None:
    assert shown(stowage, "plan", "run.db") == """\
order   optimal: peak 13.00 MiB, bound 13.00 MiB, program order 16.00 MiB; 1 of 6 ops moved
layout  optimal: arena 10.00 MiB, bound 10.00 MiB
time    1.50 ms

step  op  moved  kind          name  places       reuses  frees
   0   0  -      aten::matmul  a     a, tensor 4  -       -
   1   2  moved  aten::mean    c     c            -       a
   2   1  -      aten::cat     b     b            -       -
   3   3  -      aten::sum     d     d            -       b
   4   4  -      aten::add     loss  -            -       c, d
   5   5  -      aten::sub_    w.1   -            -       -

  offset        size  tensor    kind
     0 B    4.00 MiB  a         intermediate
     0 B    8.00 MiB  b         intermediate
4.00 MiB  512.00 KiB  tensor 4  workspace
8.00 MiB    1.00 MiB  c         intermediate
9.00 MiB    1.00 MiB  d         intermediate
"""


def test_plan_shows_what_takes_the_memory_of_what(stowage: Stowage, store: Path) -> None:
    change_store(store, "DELETE FROM points WHERE kind = 'free' AND tensor = 3; "
                        "UPDATE points SET kind = 'reuse', of_tensor = 3 WHERE tensor = 6 AND kind = 'place'")
    table = shown(stowage, "plan", "run.db").splitlines()[4:7]
    assert table == ["step  op  moved  kind          name  places       reuses    frees",
                     "   0   0  -      aten::matmul  a     a, tensor 4  -         -",
                     "   1   2  moved  aten::mean    c     -            c over a  -"]
    assert parsed(stowage, "plan", "run.db")["order"][1]["reuse"] == [
        {"tensor": 6, "name": "c", "of_tensor": 3, "of_name": "a"}]
    ops = parsed(stowage, "ops", "run.db", "--planned")["ops"]
    assert (ops[1]["freed_bytes"], ops[1]["live_after_bytes"]) == (4 * MIB, 4 * MIB + 4)


def test_sql(stowage: Stowage, store: Path) -> None:
    query = "SELECT kind, count(*) AS tensors, NULL FROM tensors WHERE run_id = 2 GROUP BY kind ORDER BY 2, 1"
    assert shown(stowage, "sql", "run.db", query, note="") == """\
kind          tensors  NULL
constant      1        NULL
output        1        NULL
workspace     1        NULL
input         2        NULL
intermediate  4        NULL
"""
    columns = shown(stowage, "sql", "run.db", "SELECT name FROM pragma_table_info('plan_order')", note="")
    assert columns.split() == ["name", "run_id", "step", "op"]
    total = shown(stowage, "sql", "run.db", "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE "
                  "i < 3) SELECT sum(i) AS total FROM n JOIN json_each('[0]')", note="")
    assert total.split() == ["total", "6"]
    assert parsed(stowage, "sql", "run.db", "SELECT 1 AS a, 2 AS a, x'00ff' AS b, NULL AS c") == [
        {"a": 1, "a:1": 2, "b": "00ff", "c": None}]


# --- JSON --------------------------------------------------------------------------------------------------------

RUN = {
    "run_id": 2, "name": "step", "kind": "graph", "ops": 6, "execution": 2, "complete": True, "dropped_records": 0,
    "created_unix_ns": 1_700_000_060_000_000_000, "duration_ns": 5_000_000, "unplanned_peak_bytes": 16 * MIB + 4,
    "planned_peak_bytes": 13 * MIB + 4, "program_peak_bytes": 16 * MIB + 4, "bound_bytes": 13 * MIB + 4,
    "order_status": "optimal", "arena_bytes": 10 * MIB, "arena_bound_bytes": 10 * MIB, "layout_status": "optimal",
    "planning_ns": 1_500_000, "device": "cpu", "torch_version": "2.11.0", "stowage_version": "0.1.0",
    "clock": "steady_clock", "alignment_bytes": 64, "size_mismatches": 0, "compared_sizes": 0,
}


def test_info_json(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "info", "run.db")
    runs = answer.pop("runs")
    assert answer == {
        "store": "run.db", "schema": 6, "size_bytes": store.stat().st_size, "dropped_records": 12,
        "first_unix_ns": 1_700_000_000_000_000_000, "last_unix_ns": 1_700_000_120_000_000_000,
        "stowage_version": ["0.1.0"], "torch_version": ["2.11.0"], "device": ["cpu"], "clock": ["steady_clock"],
        "allocations": 6, "cupti_sizes": 0, "compared_sizes": 0, "size_mismatches": 0,
    }
    assert [run["run_id"] for run in runs] == [1, 2, 3]
    assert runs[1] == RUN
    assert [run["planned_peak_bytes"] for run in runs] == [None, 13 * MIB + 4, None]


def test_ops_json(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "ops", "run.db", "--planned")
    assert (answer["run"], answer["planned"]) == (RUN, True)
    assert answer["ops"][1] == {
        "step": 1, "op": 2, "name": "c", "kind": "aten::mean", "scope": "net", "source": "net.py:9",
        "start_ns": 3_500_000, "duration_ns": 40_500, "allocated_bytes": MIB, "freed_bytes": 4 * MIB,
        "live_bytes": 8 * MIB + 4, "live_after_bytes": 4 * MIB + 4, "device_ns": None, "kernels": None,
    }
    assert [op["live_after_bytes"] // MIB for op in answer["ops"]] == [7, 4, 12, 5, 3, 3]


def test_tensors_json(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "tensors", "run.db", "--limit", "0")
    assert len(answer["tensors"]) == 9
    assert answer["tensors"][1] == {
        "tensor": 3, "name": "a", "kind": "intermediate", "size_bytes": 4 * MIB, "dtype": "Float",
        "shape": "[1024, 1024]", "allocate_op": 0, "allocate_name": "a", "allocate_kind": "aten::matmul",
        "scope": "net.fc", "source": "net.py:7", "free_op": 2,
        "next_free_op": None, "last_use_op": 2, "last_use_name": "c", "last_use_kind": "aten::mean",
        "class": "temporaries",
    }


def test_peak_json(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "peak", "run.db")
    assert (answer["run"], answer["bound_bytes"]) == (RUN, 13 * MIB + 4)
    before, after = answer["before"], answer["after"]
    assert (before["op"], before["step"], before["live_bytes"]) == (2, 2, 16 * MIB + 4)
    assert (after["op"], after["step"], after["live_bytes"]) == (3, 3, 13 * MIB + 4)
    for side in (before, after):
        assert sum(tensor["size_bytes"] for tensor in side["tensors"]) == side["live_bytes"]
        for group in ("by_kind", "by_class"):
            assert sum(each["size_bytes"] for each in side[group]) == side["live_bytes"]
        assert side["tensors"][0]["class"] == "temporaries"
    assert [tensor["name"] for tensor in after["tensors"]] == ["b", "w", "x", "c", "d", "lr"]
    assert parsed(stowage, "peak", "run.db", "--run", "3")["after"] is None


def test_plan_json(stowage: Stowage, store: Path) -> None:
    answer = parsed(stowage, "plan", "run.db")
    assert (answer["run"], answer["moved_ops"]) == (RUN, 1)
    assert [op["op"] for op in answer["order"]] == [0, 2, 1, 3, 4, 5]
    assert answer["order"][1] == {
        "step": 1, "op": 2, "name": "c", "kind": "aten::mean", "source": "net.py:9", "moved": True,
        "place": [{"tensor": 6, "name": "c"}], "reuse": [], "free": [{"tensor": 3, "name": "a"}],
    }
    assert answer["slots"][0] == {
        "slot": 0, "tensor": 3, "name": "a", "kind": "intermediate", "offset_bytes": 0, "size_bytes": 4 * MIB,
        "other_offset_bytes": None}


# --- the figures -------------------------------------------------------------------------------------------------

def test_the_replay_of_the_plan_finds_the_peak_that_the_plan_states(store: Path) -> None:
    with Store(str(store)) as opened:
        run = opened.run(2)
        assert Curve(opened, run, planned=True).peak()["live_bytes"] == run["planned_peak_bytes"]
        assert max(op["live_bytes"] for op in opened.ops(run, planned=True)) == run["planned_peak_bytes"]
        assert Curve(opened, run, planned=False).peak()["live_bytes"] == run["unplanned_peak_bytes"]
        assert max(op["live_bytes"] for op in opened.ops(run, planned=False)) == run["unplanned_peak_bytes"]


def test_the_peak_of_a_workspace_is_inside_its_op(store: Path) -> None:
    """Freed and allocated within one op: the peak is between the two, not after the op."""
    change_store(store, f"UPDATE tensors SET size_bytes = {64 * MIB} WHERE kind = 'workspace';"
                        f"UPDATE allocations SET requested_bytes = {64 * MIB}, rounded_bytes = {64 * MIB} "
                        "WHERE tensor = 4")
    with Store(str(store)) as opened:
        for planned in (False, True):
            peak = Curve(opened, opened.run(2), planned).peak()
            assert (peak["op"], peak["live_bytes"]) == (0, 71 * MIB + 4)
            first = opened.ops(opened.run(2), planned)[0]
            assert (first["live_bytes"], first["live_after_bytes"]) == (71 * MIB + 4, 7 * MIB + 4)


def test_the_newest_planned_run_is_the_default(store: Path) -> None:
    with Store(str(store)) as opened:
        assert opened.run(None)["run_id"] == 2
        change_store(store, "DELETE FROM plans")
    with Store(str(store)) as opened:
        assert opened.run(None)["run_id"] == 3


@pytest.mark.parametrize(("order", "moved"), [
    ([], set()),
    ([0, 1, 2, 3], set()),
    ([0, 2, 1, 3, 4, 5], {2}),
    ([3, 0, 1, 2], {3}),
    ([1, 2, 3, 0], {0}),
    ([3, 2, 1, 0], {1, 2, 3}),
    ([0, 4, 5, 1, 2, 3, 6], {4, 5}),
])
def test_moved_ops_are_the_fewest(order: list[int], moved: set[int]) -> None:
    assert moved_ops(order) == moved


def test_quantities() -> None:
    assert [size(n) for n in (None, 0, 1023, 1024, 4 * MIB, 3 << 30, 5 << 50)] == [
        "-", "0 B", "1023 B", "1.00 KiB", "4.00 MiB", "3.00 GiB", "5120.00 TiB"]
    assert [duration(n) for n in (0, 999, 1000, 1_500_000, 2_000_000_000)] == [
        "0 ns", "999 ns", "1.00 us", "1.50 ms", "2.00 s"]
    assert [date(None), date(0), date(1 << 62)] == ["-", "1970-01-01 00:00:00 UTC", "2116-02-20 23:53:38 UTC"]


def test_names_cannot_steer_the_terminal(stowage: Stowage, store: Path) -> None:
    assert printable("a\x1b[2Jb\r\u202e") == "a\\x1b[2Jb\\r\\u202e"
    change_store(store, "UPDATE ops SET name = char(27) || '[31m[bold]' WHERE op = 0")
    assert "\\x1b[31m[bold]" in shown(stowage, "ops", "run.db")


# --- how it behaves ----------------------------------------------------------------------------------------------

def test_it_starts_without_importing_torch(store: Path) -> None:
    program = ("import sys; from stowage import cli; sys.argv = ['stowage', 'info', sys.argv[1]]\n"
               "try: cli.main()\n"
               "finally: print('torch' in sys.modules)")
    result = subprocess.run([sys.executable, "-c", program, str(store)], capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")})
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "False")


def test_a_closed_pipe_is_no_error_message(store: Path) -> None:
    change_store(store, "WITH RECURSIVE n (i) AS (VALUES (6) UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
                        "INSERT INTO ops SELECT 2, i, 'name', 'kind', '', '', 0, 0, 0, NULL FROM n")
    command = f"'{sys.executable}' -m stowage.cli ops run.db | head -n 1"
    result = subprocess.run(["sh", "-c", command], cwd=store.parent, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")})
    assert (result.stdout.split()[:2], result.stderr) == (["step", "op"], NOTE)
