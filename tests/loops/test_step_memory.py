# SPDX-License-Identifier: Apache-2.0
"""Plans of steps outlive the process in the store: the next one follows them from its first step on."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import stowage

PROGRAM = """
import json, os, sys
import stowage, torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
if os.environ["LOOP_STORE"] != "unplanned":
    stowage.enable(os.environ["LOOP_STORE"])
stowage.set_option("poison", "1")
width, kind = int(os.environ.get("LOOP_WIDTH", "256")), os.environ.get("LOOP_KIND", "plain")
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(1)
losses, watched, planned, kept = [], [], [], None

def watched_steps():
    return sum(each["watched_steps"] for each in stowage.status()["steps"])

for turn in range(8):
    x, y = torch.randn(128, 64), torch.randint(10, (128,))
    before = watched_steps()
    with stowage.step(device="cpu"):
        if kind == "plain":
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if kind == "late":  # what the step before made lives until this one's has come: steps take turns
            kept = model[0].weight.detach().repeat(8, 1).exp()
        if kind == "late":
            optimizer.zero_grad()
    watched.append(watched_steps() > before)
    if kind == "evaluated" and turn > 3:
        with stowage.step(device="cpu"), torch.no_grad():
            model(x[:100])
    losses.append(loss.item().hex())
    planned.append(sum(each["planned_steps"] for each in stowage.status()["steps"]))
status = stowage.status()
print(json.dumps({"losses": losses, "watched": watched, "planned": planned, "steps": status["steps"],
                  "notes": status["notes"], "report": str(stowage.report())}))
"""


def run(store: Path | str, **environment: str) -> dict:
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path, "LOOP_STORE": str(store), **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout), "told": done.stderr}


def phases(result: dict) -> list[dict]:
    return [phase for phase in result["steps"][0]["phases"] if phase["state"] == "planned"]


def tamper(store: Path, script: str) -> None:
    with sqlite3.connect(store) as connection:
        connection.executescript(script)
    connection.close()


def rows(store: Path, query: str) -> list[tuple]:
    with sqlite3.connect(store) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "loop.db"


@pytest.mark.parametrize("kind", ["plain", "late"])
def test_the_next_process_is_planned_from_its_first_step(store: Path, kind: str) -> None:
    unplanned = run("unplanned", LOOP_KIND=kind)
    first, second = run(store, LOOP_KIND=kind), run(store, LOOP_KIND=kind)
    assert first["losses"] == second["losses"] == unplanned["losses"]
    # The optimizer makes its state in the first step, which is a kind of its own.
    assert first["planned"] == [0, 0, 0, 1, 2, 3, 4, 5]
    assert second["planned"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [phase["recalled"] for phase in phases(first)] == [False]
    assert [phase["recalled"] for phase in phases(second)] == [True, True]
    assert {phase["turns"] for phase in phases(first)} == {2 if kind == "late" else 1}
    assert second["steps"][0]["planned_bytes"] > 0.9 * second["steps"][0]["bytes"]
    steady = max(phases(second), key=lambda phase: phase["runs"])
    assert steady["runs"] == 7
    assert steady["last"]["hits"]["allocations"] == steady["allocations"]
    assert "plans made: 0, recalled from the store: 2" in second["report"]
    assert rows(store, "SELECT count(*) FROM plans") == [(2,)]  # nothing was written again


def test_planned_steps_run_without_a_callback_for_each_op(store: Path) -> None:
    first, second = run(store), run(store)
    assert first["watched"] == [True, True, True, False, False, False, False, False]
    assert second["watched"] == [False] * 8
    assert (first["steps"][0]["watched_steps"], second["steps"][0]["watched_steps"]) == (3, 0)


def test_the_store_names_the_ops_of_a_step(store: Path) -> None:
    run(store)
    [(steady,)] = rows(store, "SELECT max(id) FROM runs")  # that of the first step comes before
    ops = rows(store, f"SELECT kind, scope FROM ops WHERE run_id = {steady}")
    assert ("aten::linear", "") in ops and ("aten::mm", "AddmmBackward0") in ops
    assert any(scope.startswith("Optimizer.step#Adam") for _, scope in ops)
    assert all(kind.startswith("aten::") for kind, _ in ops)
    [(op, live_bytes, stated_bytes)] = rows(
        store, f"SELECT o.kind, p.live_bytes, r.peak_bytes FROM peak AS p JOIN runs AS r ON r.id = p.run_id "
               f"JOIN ops AS o ON o.run_id = p.run_id AND o.op = p.op WHERE r.id = {steady}")
    assert op.startswith("aten::") and live_bytes == stated_bytes > 0
    # Gradients are freed by the next step, and nothing of a steady step is left after that.
    assert rows(store, f"SELECT count(*) FROM carried WHERE run_id = {steady}")[0][0] >= 4
    assert rows(store, f"SELECT count(*) FROM lifetimes WHERE run_id = {steady} AND free_event IS NULL "
                       "AND next_free_event IS NULL") == [(0,)]


def test_ops_are_watched_from_where_a_step_leaves_the_plans(store: Path) -> None:
    """Evaluation comes when training is planned already: its first op alone runs before that shows."""
    result = run(store, LOOP_KIND="evaluated")
    assert result["watched"] == [True, True, True, False, False, False, False, False]
    [(evaluation,)] = rows(store, "SELECT max(id) FROM runs")
    kinds = [kind for kind, in rows(store, f"SELECT kind FROM ops WHERE run_id = {evaluation} ORDER BY op")]
    assert kinds[0] == "outside" and kinds.count("outside") == 1
    outermost = [kind for kind in kinds if kind in ("aten::relu", "aten::linear")]  # and parts of the first op
    assert outermost == ["aten::relu", "aten::linear", "aten::relu", "aten::linear"]


@pytest.mark.parametrize("column", ["device", "torch_version", "rules", "graph_hash"])
def test_plans_of_other_surroundings_are_left_alone(store: Path, column: str) -> None:
    first = run(store)
    tamper(store, f"UPDATE runs SET {column} = {column} || 'x'")
    second = run(store)
    assert second["planned"] == first["planned"]
    assert second["losses"] == first["losses"]
    assert not any(phase["recalled"] for phase in phases(second))


@pytest.mark.parametrize(("damage", "told"), [
    ("UPDATE slots SET offset_bytes = 0", "cannot use a plan of a step on cpu from the store: buffer 'allocation "),
    ("UPDATE slots SET size_bytes = size_bytes + 64 WHERE slot = 0",
     "cannot use a plan of a step on cpu from the store: the slot of allocation "),
    ("UPDATE allocations SET requested_bytes = 2048, rounded_bytes = 2048 WHERE allocation = 3",
     "cannot use a plan of a step on cpu from the store: the slot of allocation 3 is none for it"),
    ("UPDATE runs SET signature = '00'", "cannot use a plan of a step on cpu from the store: its sizes have digest "),
    ("UPDATE allocations SET op = 9999 WHERE allocation = 0", "names op 9999 of "),
])
def test_a_broken_plan_is_told_of_and_made_anew(store: Path, damage: str, told: str) -> None:
    first = run(store)
    tamper(store, f"DELETE FROM runs WHERE execution = 1; {damage}")
    second = run(store)
    assert second["losses"] == first["losses"]
    assert second["planned"] == first["planned"]
    lines = [line for line in second["told"].splitlines() if line.startswith("stowage: ")]
    assert len(lines) == 1 and told in lines[0]


def test_plans_of_a_program_that_has_changed_give_way(store: Path) -> None:
    """The same command, wider layers: nothing fits, and the arena is of the new plan's size."""
    wide = run(store, LOOP_WIDTH="2048")
    narrow = run(store, LOOP_WIDTH="128")
    assert narrow["losses"] == run("unplanned", LOOP_WIDTH="128")["losses"]
    assert narrow["planned"][-1] >= 4
    [phase] = phases(narrow)
    assert not phase["recalled"]
    assert phase["arena_bytes"] < phases(wide)[0]["arena_bytes"]
