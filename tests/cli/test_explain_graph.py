# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of a run of a graph."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from cli.sample_store import MIB, Stowage, change_store, damaged_copies
from cli.written_steps import Graph, Op, write_store

from stowage.explaining.graph import GraphExplanation, explain_graph
from stowage.store import Store

NOTE = ("stowage: run 1 'Net' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:13:20 UTC\n")
INPUTS = {"input_0": (MIB, "[8, 32768]"), "p_a_weight": (4 * MIB, "[1024, 1024]"), "p_b_weight": (2 * MIB, "[512, 1024]")}
#   MiB live in program order: 7 | mm 10 | relu 13 | out 14 | loss, workspace 15 | d 15, free out 14 | gb 16, free relu 13 |
#   dr 16, free d 15 | dm 18, free mm, dr 12 | ga 16, free dm 13 | free ga 9 | free gb 7
#   With the update of b right behind dr, gb is gone: dm 16. No order needs less there.
STEP = [
    Op("mm", "aten::mm", ("input_0", "p_a_weight"), makes={"mm": 3 * MIB}, scope="a", source="net.py:3"),
    Op("relu", "aten::relu", ("mm",), makes={"relu": 3 * MIB}, source="net.py:4"),
    Op("mm_1", "aten::mm", ("relu", "p_b_weight"), makes={"out": MIB}, scope="b", source="net.py:5"),
    Op("loss", "aten::nll_loss", ("out",), makes={"loss": 4}, workspace=MIB, source="train.py:9"),
    Op("d", "aten::nll_loss_backward", ("out", "loss"), makes={"d": MIB}),
    Op("mm_2", "aten::mm", ("relu", "d"), makes={"gb": 2 * MIB}, scope="b"),
    Op("mm_3", "aten::mm", ("d", "p_b_weight"), makes={"dr": 3 * MIB}, scope="b"),
    Op("dm", "aten::threshold_backward", ("dr", "mm"), makes={"dm": 3 * MIB}, source="net.py:4"),
    Op("mm_4", "aten::mm", ("input_0", "dm"), makes={"ga": 4 * MIB}, scope="a"),
    Op("add__a_weight", "aten::add_", ("p_a_weight", "ga"), ("p_a_weight",), after={"loss": "effect"}),
    Op("add__b_weight", "aten::add_", ("p_b_weight", "gb"), ("p_b_weight",), after={"loss": "effect"}),
]
GRAPH = Graph(INPUTS, STEP, order=[0, 1, 2, 3, 4, 5, 6, 10, 7, 8, 9], bound_bytes=16 * MIB + 4)
# Case 2: the second branch should come first, as it leaves less behind, but then it would draw the first one's numbers.
#   MiB live with the first one first:  1 | 9 | 15, free 7 | 16 | 17, free 8
#   with the second one first:          1 | 10 | 11, free 2 | 10 | 16, free 8
BRANCHES = Graph({"x": (MIB, "[4]")}, [
    Op("dropout", "aten::dropout", ("x",), makes={"dropout": 8 * MIB}),
    Op("mean", "aten::mean", ("dropout",), makes={"mean": 6 * MIB}),
    Op("dropout_1", "aten::dropout", ("x",), makes={"dropout_1": 9 * MIB}, after={"dropout": "random"}),
    Op("mean_1", "aten::mean", ("dropout_1",), makes={"mean_1": MIB}),
    Op("sum", "aten::add", ("mean", "mean_1"), makes={"sum": 64}),
], outputs=("sum",), order=[0, 1, 2, 3, 4], bound_bytes=17 * MIB)


@pytest.fixture
def graph_store(tmp_path: Path) -> Path:
    return rewrite(tmp_path / "run.db", GRAPH)


def shown(stowage: Stowage, *arguments: str, note: str = NOTE) -> str:
    result = stowage("explain", "run.db", *arguments)
    assert (result.returncode, result.stderr) == (0, note)
    return result.stdout


def rewrite(path: Path, graph: Graph) -> Path:
    path.unlink(missing_ok=True)
    write_store(path, graph)
    return path


def explained(path: Path) -> GraphExplanation:
    with Store(str(path)) as store:
        return explain_graph(store, store.step(None))


EXPLANATION = """\
Peak of 'Net' at batch 8, 11 ops
  before planning   18.00 MiB  in the backward, the 4th of its 5 ops
                               op 7 aten::threshold_backward 'dm' at net.py:4
  after planning    16.00 MiB  11.1 % less, in the backward, the 2nd of its 5 ops
                               op 5 aten::mm 'mm_2' in b
  proven bound      16.00 MiB  no order of these ops needs less: this one is the best

  The peak is not at the end of the forward: 15.00 MiB live there, 16.7 % below the peak before planning and
  6.2 % below that after.

What lives at the peak
     before  tensors      after  tensors
   6.00 MiB        2   6.00 MiB        2  parameters
   1.00 MiB        1   1.00 MiB        1  the batch
        4 B        1        4 B        1  results, which live to the end
   3.00 MiB        1   6.00 MiB        2  saved activations: made by the forward, needed by the backward
   2.00 MiB        1   2.00 MiB        1  gradients, until their update
   6.00 MiB        2   1.00 MiB        1  temporaries
  18.00 MiB        8  16.00 MiB        8  together: the peak

By module
     before  tensors      after  tensors
  10.00 MiB        5   5.00 MiB        4  b
   7.00 MiB        2  10.00 MiB        3  a
   1.00 MiB        1   1.00 MiB        1  no module: the batch, constants
  18.00 MiB        8  16.00 MiB        8  together: the peak

Why no order needs less than 16.00 MiB
  While op 7 'dm' runs, wherever it stands in the order, all of these live: an op that must run before it
  makes them, or it does so itself, and it needs them, or an op that must run after it.
       size  class              tensor  made before by  needed after by
   7.00 MiB  inputs, constants  all                     they live throughout
   3.00 MiB  saved activations  mm      0 mm            itself
   3.00 MiB  temporaries        dr      6 mm_3          itself
   3.00 MiB  temporaries        dm      itself
        4 B  outputs            loss    3 loss          the end: a result
  16.00 MiB  together

What the plan changed
- moved to another place in the order: 1 of 11 ops; 'stowage plan' lists them
- updates moved up: 1 of 2 gradients are used and freed before the backward ends; as written, none
- together they take 2.00 MiB off the peak

What the plan could not change
- 7.00 MiB, 43.7 % of the peak, comes from outside and lives throughout: parameters, batch
- 3 ops have effects (a parameter is written, an error may be raised) and keep their order (aten::add_,
  aten::nll_loss). This costs nothing: without it no order needs less either

Activations-bound
  55.6 % of the peak before planning grows with the batch (what the forward saves, temporaries, the batch
  itself). 44.4 % is the same at any batch (parameters, their gradients, optimizer state).
  Order helps such a step little: what the forward saves must live until the backward needs it, in every
  order. At the peak before planning that is 3.00 MiB. Below batch 7, less than half of the peak grows.
  batch     before      after        saved   grows
      4  14.00 MiB  12.00 MiB  14.3 % less  14.3 %  predicted
      8  18.00 MiB  16.00 MiB  11.1 % less  55.6 %  this run
     16  28.00 MiB  26.00 MiB   7.1 % less  71.4 %  predicted
     32  48.00 MiB  46.00 MiB   4.2 % less  83.3 %  predicted

What would help next
- run ops again instead of keeping what they made, in up to 1.05 times the time: would not help
- halve the batch, to 4: 12.00 MiB, 25.0 % less; predicted for the order of now
"""


def test_a_planned_step(stowage: Stowage, graph_store: Path) -> None:
    assert shown(stowage) == EXPLANATION


def test_a_step_that_is_not_planned(stowage: Stowage, graph_store: Path) -> None:
    change_store(graph_store, "PRAGMA foreign_keys = ON; DELETE FROM plans")
    text = shown(stowage)
    assert "before planning   18.00 MiB" in text and "after planning" not in text and "What the plan" not in text
    assert "The peak is not at the end of the forward: 15.00 MiB live there, 16.7 % below the peak.\n" in text
    assert ("- let stowage plan the order: 16.00 MiB, 11.1 % less; train on: it plans a step that it has seen twice\n"
            in text)
    assert "- halve the batch, to 4: 14.00 MiB, 22.2 % less" in text


def test_a_random_chain_is_named_as_what_forbids_the_better_order(stowage: Stowage, tmp_path: Path) -> None:
    rewrite(tmp_path / "run.db", BRANCHES)
    text = " ".join(shown(stowage).split())
    assert ("2 ops draw random numbers in the order as written, so that a seed gives the same ones (aten::dropout). This "
            "costs 1.00 MiB: without it an order of 16.00 MiB exists, and this is why that better order was not taken"
            ) in text
    assert "The graph is no captured training step" in text
    assert "Nor than 17.00 MiB: the search has ruled out all orders below that." in text


def test_an_order_that_another_reason_holds_too_costs_nothing_by_itself(tmp_path: Path) -> None:
    tied = replace(BRANCHES.ops[2], after={"dropout": "random", "mean": "barrier"})
    path = rewrite(tmp_path / "run.db", replace(BRANCHES, ops=[*BRANCHES.ops[:2], tied, *BRANCHES.ops[3:]]))
    limits = explained(path).limits
    assert [(limit.reason, limit.costs_bytes) for limit in limits] == [
        ("random", 0), ("barrier", 0), ("random and barrier", MIB)]
    assert limits[0].least_bytes is None  # what must live alone proves it


def test_json(stowage: Stowage, graph_store: Path) -> None:
    found = json.loads(shown(stowage, "--json", note=""))
    assert found["run"]["run_id"] == 1
    assert (found["before"]["peak_bytes"], found["after"]["peak_bytes"]) == (18 * MIB + 4, 16 * MIB + 4)
    assert found["before"]["op"] == {"op": 7, "name": "dm", "kind": "aten::threshold_backward", "scope": "",
                                     "source": "net.py:4"}
    assert (found["before"]["place"], found["before"]["forward_end_bytes"]) == ("backward", 15 * MIB + 4)
    assert found["bound_by"] == "activations"
    assert found["changes"] == {"ops": 11, "moved_ops": 1, "gradients": 2, "reused_tensors": 0, "reused_bytes": 0}
    for side in (found["before"], found["after"]):
        for shares in (side["classes"], side["modules"]):
            assert sum(share["size_bytes"] for share in shares) == side["peak_bytes"]
    proof = found["proof"]
    facts_bytes = sum(fact["size_bytes"] for fact in proof["tensors"])
    assert proof["throughout_bytes"] + facts_bytes == proof["bound_bytes"] == 16 * MIB + 4
    assert found["helps"][-1] == {"name": "halve the batch, to 4", "peak_bytes": 12 * MIB + 4,
                                  "how": "predicted for the order of now", "time_ratio": None}


def test_what_is_written_over_a_dying_input(stowage: Stowage, tmp_path: Path) -> None:
    rewrite(tmp_path / "run.db", replace(GRAPH, takes_over={"dm": "dr"}))
    assert "- written over an input that dies there: 1 result, 3.00 MiB over the whole step" in shown(stowage)
    after = explained(tmp_path / "run.db").after
    assert after is not None and after.peak_bytes == sum(share.size_bytes for share in after.classes) == 16 * MIB + 4


def test_a_graph_that_a_budget_has_made_says_so(stowage: Stowage, graph_store: Path) -> None:
    change_store(graph_store, "UPDATE ops SET program_op = max(0, op - 1)")
    assert shown(stowage).startswith("Peak of 'Net' at batch 8, 11 ops, 1 of them run again within a budget\n")


def test_without_the_solver_the_rest_is_said(stowage: Stowage, graph_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWAGE_SOLVE", "nowhere/stowage-solve")
    text = shown(stowage)
    assert "Not shown: cannot plan: 'nowhere/stowage-solve' not found" in text
    assert text.split("\n\n")[:4] == EXPLANATION.split("\n\n")[:4]
    assert "- halve the batch, to 4: 12.00 MiB, 25.0 % less" in text and "This costs" not in text


def test_other_models_of_the_store_are_named(stowage: Stowage, graph_store: Path) -> None:
    change_store(graph_store, """
        INSERT INTO runs SELECT 2, 'Other', graph_hash, signature, device, torch_version, stowage_version, clock,
          created_unix_ns, execution, dropped_records, complete, duration_ns, 0, graph_text, rules, alignment_bytes,
          size_mismatches, kind FROM runs;
        INSERT INTO plans SELECT 2, 0, 0, 0, 'optimal', 0, 0, 'optimal', 0, '', 0 FROM runs WHERE id = 2;
        INSERT INTO ops VALUES (2, 0, 'noop', 'aten::noop', '', '', 0, 0, 0, NULL);
        INSERT INTO plan_order VALUES (2, 0, 0);""")
    result = stowage("explain", "run.db")
    assert result.stderr.splitlines()[1] == "stowage: the store has other runs too, explained with --run: 1 'Net'"
    assert shown(stowage, "--run", "1").startswith("Peak of 'Net'")


def replayed(graph: Graph, path: Path) -> tuple[int, int, dict[str, int]]:
    """The peak of the program order, the op where it is and what lives there by name, from the allocations' rows."""
    with Store(str(path)) as store:
        rows = store.query("SELECT a.*, t.name FROM allocations AS a JOIN tensors AS t ON t.tensor = a.tensor")
    events = [(row["allocate_event"], row, 1) for row in rows]
    events += [(row["free_event"], row, -1) for row in rows if row["free_event"] is not None]
    live = {name: size for name, (size, _) in graph.inputs.items()}
    best = (sum(live.values()), -1, dict(live))
    for _, row, sign in sorted(events, key=lambda each: each[0]):
        name = row["name"] or f"workspace of {row['op']}"
        live[name] = live.get(name, 0) + sign * row["requested_bytes"]
        if sum(live.values()) > best[0]:
            best = (sum(live.values()), row["op"], {name: size for name, size in live.items() if size})
    return best


def random_graph(chance: random.Random) -> Graph:
    inputs = {f"x{number}": (chance.randrange(1, 99), "[4]") for number in range(3)}
    names, ops = list(inputs), []
    for number in range(chance.randrange(3, 30)):
        reads = tuple({chance.choice(names) for _ in range(3)})
        made = {f"t{number}_{part}": chance.randrange(1, 99) for part in range(chance.randrange(1, 3))}
        ops.append(Op(f"o{number}", "aten::o", reads, makes=made, workspace=chance.choice([0, 0, 50])))
        names = [*names, *made][-12:]
    return Graph(inputs, ops, outputs=(names[-1],))


def test_the_peak_is_what_the_allocations_make_and_its_parts_add_up(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWAGE_SOLVE", "nowhere/stowage-solve")
    for seed in range(25):
        graph = random_graph(random.Random(seed))
        path = rewrite(tmp_path / "run.db", graph)
        side = explained(path).before
        peak_bytes, op, live = replayed(graph, path)
        assert (side.peak_bytes, side.op["op"] if side.op else -1) == (peak_bytes, op), f"seed {seed}"
        for shares in (side.classes, side.modules):
            assert sum(share.size_bytes for share in shares) == peak_bytes, f"seed {seed}"
        assert sum(share.tensors for share in side.classes) == len(live), f"seed {seed}"


@pytest.mark.parametrize(("script", "why"), [
    ("UPDATE runs SET complete = 0", "it ended early; profile again"),
    ("DELETE FROM plans; DELETE FROM allocations; DELETE FROM uses; DELETE FROM dependencies; DELETE FROM ops",
     "it has no ops; choose another from 'stowage info'"),
    ("DELETE FROM plan_order WHERE step = 5",
     "its plan has not each op once; the file is damaged: move it away and profile again"),
])
def test_a_run_that_cannot_be_explained(stowage: Stowage, graph_store: Path, script: str, why: str) -> None:
    change_store(graph_store, f"PRAGMA foreign_keys = ON; {script}")
    result = stowage("explain", "run.db", "--run", "1")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"stowage: cannot explain run 1 of store 'run.db': {why}\n"


def test_whatever_bytes_are_wrong_the_answer_is_a_line(stowage: Stowage, graph_store: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWAGE_SOLVE", "nowhere/stowage-solve")
    refusals = 0
    for seed, copy in damaged_copies(graph_store, 60):
        result = stowage("explain", copy)
        assert result.returncode in (0, 1), f"seed {seed}"
        if result.returncode == 1:
            refusals += 1
            assert result.stderr.startswith("stowage: cannot ") and result.stderr.count("\n") == 1, f"seed {seed}"
    assert refusals > 0
