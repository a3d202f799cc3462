# SPDX-License-Identifier: Apache-2.0
"""`stowage order` and `stowage graph`: what they print, and every reason for which an op waits for another."""

import csv
import io
import json
from pathlib import Path

import pytest
from cli.sample_store import MIB, STEP, Stowage, change_store
from cli.test_commands import NOTE, shown
from cli.written_steps import Graph, Op, write_store

from stowage.ordering import waits
from stowage.store import Store


def refused(stowage: Stowage, *arguments: str) -> str:
    result = stowage(*arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("stowage: ").rstrip("\n")


def test_order(stowage: Stowage, store: Path) -> None:
    assert shown(stowage, "order", "run.db") == """\
1 of 6 ops moved: peak 16.00 MiB as written, 13.00 MiB as planned, bound 13.00 MiB

step  as written  frees           op  as planned  moved   frees
   0  a           -                0  a           -       -
   1  b           -                2  c           from 2  a: 4.00 MiB
   2  c           a: 4.00 MiB      1  b           -       -
   3  d           b: 8.00 MiB      3  d           -       b: 8.00 MiB
   4  loss        c, d: 2.00 MiB   4  loss        -       c, d: 2.00 MiB
   5  w.1         -                5  w.1         -       -
"""


def test_order_of_some_steps(stowage: Stowage, store: Path) -> None:
    def steps(*options: str) -> list[int]:
        return [row["step"] for row in json.loads(shown(stowage, "order", "run.db", "--json", *options, note=""))["steps"]]

    assert steps("--from", "1", "--to", "3") == [1, 2, 3]
    assert steps("--scope", "net.fc") == [0]
    assert steps("--scope", "net") == [0, 1, 2]
    assert steps("--scope", "ne") == []
    note = "stowage: 2 of 5 steps; --limit 0 shows all\n"
    limited = json.loads(shown(stowage, "order", "run.db", "--json", "--from", "1", "--limit", "2", note=note))
    assert [row["step"] for row in limited["steps"]] == [1, 2]
    assert limited["moved_ops"] == 1


def test_order_as_data(stowage: Stowage, store: Path) -> None:
    rows = json.loads(shown(stowage, "order", "run.db", "--json", note=""))["steps"]
    assert rows[1] == {
        "step": 1, "op": 1, "name": "b", "kind": "aten::cat", "scope": "net", "source": "net.py:8", "update": False,
        "frees": [], "freed_bytes": 0, "planned_op": 2, "planned_name": "c", "planned_kind": "aten::mean",
        "planned_scope": "net", "planned_source": "net.py:9", "planned_update": False, "planned_frees": ["a"],
        "planned_freed_bytes": 4 * MIB, "planned_moved": True, "planned_from_step": 2}
    table = list(csv.DictReader(io.StringIO(shown(stowage, "order", "run.db", "--csv", note=""))))
    assert [list(row) for row in table] == [list(row) for row in rows]
    assert [row["planned_frees"] for row in table] == ["[]", '["a"]', "[]", '["b"]', '["c", "d"]', "[]"]


def test_order_frees_what_a_result_overlays(stowage: Stowage, store: Path) -> None:
    change_store(store, "UPDATE points SET kind = 'reuse', tensor = 6, of_tensor = 3 WHERE run_id = 2 AND kind = 'free' "
                        "AND op = 2")
    rows = json.loads(shown(stowage, "order", "run.db", "--json", note=""))["steps"]
    assert (rows[1]["planned_frees"], rows[1]["planned_freed_bytes"]) == (["a"], 4 * MIB)


def updating_step(path: Path) -> None:
    write_store(path, Graph(
        inputs={"p_w": (100, "[25]"), "input_0": (40, "[10]")},
        ops=[Op("y", "aten::mul", reads=("input_0", "p_w"), makes={"y": 100}),
             Op("loss", "aten::sum", reads=("y",), makes={"loss": 4}),
             Op("grad", "aten::mul", reads=("y",), makes={"grad": 100}),
             Op("other", "aten::exp", reads=("input_0",), makes={"other": 8}),
             Op("add__w", "aten::add_", reads=("grad",), writes=("p_w",))],
        order=[0, 1, 2, 4, 3]))


def test_order_marks_updates(stowage: Stowage, tmp_path: Path) -> None:
    updating_step(tmp_path / "run.db")
    rows = json.loads(stowage("order", "run.db", "--json").stdout)["steps"]
    assert [row["update"] for row in rows] == [False, False, False, False, True]
    assert [row["planned_update"] for row in rows] == [False, False, False, True, False]
    assert stowage("order", "run.db").stdout.count("add__w (update)") == 2


def test_order_of_a_loops_step(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP)
    rows = json.loads(shown(stowage, "order", "run.db", "--run", "4", "--json", note=""))["steps"]
    assert [(row["op"], row["planned_op"], row["planned_moved"]) for row in rows] == [(op, op, False) for op in range(4)]


def test_order_without_a_plan(stowage: Stowage, store: Path) -> None:
    assert refused(stowage, "order", "run.db", "--run", "3") == (
        "cannot show the plan of run 3 in store 'run.db': it has none; choose a planned run from 'stowage info'")


# Case: a value read through a view of another type before the memory behind it is written, twice.
VIEWS = Graph(
    inputs={"x": (64, "[4, 4]")},
    ops=[Op("view", "aten::view"),
         Op("y", "aten::mul", reads=("x",), makes={"y": 64}, after={"view": "value"}),
         Op("y.1", "aten::sub_", reads=("y",), writes=("y",)),
         Op("x.1", "aten::fill_", writes=("x",)),
         Op("x.2", "aten::fill_", writes=("x",)),
         Op("drawn", "aten::bernoulli", reads=("y",), makes={"drawn": 64}),
         Op("again", "aten::bernoulli", reads=("y",), makes={"again": 64}, after={"drawn": "random"}),
         Op("print", "prim::Print", after={"x.2": "effect"}),
         Op("loss", "custom::op", reads=("y", "x"), makes={"loss": 4}, after={"print": "barrier", "y.1": "value"})])


@pytest.fixture
def views(tmp_path: Path) -> Path:
    write_store(tmp_path / "run.db", VIEWS)
    return tmp_path / "run.db"


def test_every_reason(views: Path) -> None:
    names = [op.name for op in VIEWS.ops]
    with Store(str(views)) as opened:
        found = {(names[edge["op"]], names[edge["after_op"]], edge["reason"], edge["tensor_name"])
                 for edge in waits(opened, opened.run(None))}
    assert found == {
        ("y", "view", "value", None),
        ("y.1", "y", "read after write", "y"),  # in place: it reads what it writes
        ("x.1", "y", "write after read", "x"),  # or y would be of what comes later
        ("x.2", "x.1", "write after write", "x"),
        ("drawn", "y.1", "read after write", "y"),  # not after y, which y.1 follows
        ("again", "y.1", "read after write", "y"),
        ("again", "drawn", "random", None),
        ("print", "x.2", "effect", None),
        ("loss", "y.1", "read after write", "y"),  # which says more than that it takes the value
        ("loss", "x.2", "read after write", "x"),
        ("loss", "print", "barrier", None),
    }


def test_graph(stowage: Stowage, store: Path) -> None:
    change_store(store, "INSERT INTO dependencies VALUES (2, 0, 4, 2, 'random')")
    expected = """\
op 4 aten::add 'loss', step 4 as planned

waits for:
op  kind        name  reason            tensor      size
 2  aten::mean  c     read after write  c       1.00 MiB
 2  aten::mean  c     random            -              -
 3  aten::sum   d     read after write  d       1.00 MiB

waited for by:
op  kind        name  reason            tensor  size
 5  aten::sub_  w.1   read after write  loss     4 B
"""
    assert shown(stowage, "graph", "run.db", "--deps", "4") == expected
    assert shown(stowage, "graph", "run.db", "--deps", "loss") == expected


def test_graph_of_the_first_op(stowage: Stowage, store: Path) -> None:
    lines = shown(stowage, "graph", "run.db", "--deps", "0").splitlines()
    assert lines[:4] == ["op 0 aten::matmul 'a' in net.fc at net.py:7, step 0 as planned", "", "waits for no op", ""]


def test_graph_as_data(stowage: Stowage, store: Path) -> None:
    answer = json.loads(shown(stowage, "graph", "run.db", "--deps", "5", "--json", note=""))
    assert answer["op"]["name"] == "w.1"
    assert answer["waited_for_by"] == []
    # It overwrites the weight that op 0 reads.
    assert [(row["op"], row["reason"], row["tensor_name"], row["size_bytes"]) for row in answer["waits_for"]] == [
        (0, "write after read", "w", 2 * MIB), (4, "read after write", "loss", 4)]
    table = list(csv.DictReader(io.StringIO(shown(stowage, "graph", "run.db", "--deps", "4", "--csv", note=""))))
    assert [(row["side"], row["name"], row["reason"]) for row in table] == [
        ("waits for", "c", "read after write"), ("waits for", "d", "read after write"),
        ("waited for by", "w.1", "read after write")]


@pytest.mark.parametrize("op", ["6", "nothing"])
def test_graph_of_an_op_that_is_not_there(stowage: Stowage, store: Path, op: str) -> None:
    assert refused(stowage, "graph", "run.db", "--deps", op) == (
        f"cannot find op '{op}' of run 2 in store 'run.db': it has 6 ops, the first is 0; list them with 'stowage ops'")
