# SPDX-License-Identifier: Apache-2.0
"""Two processes train with DDP under torchrun: planned equals unplanned on each, and a rank that is killed takes no
store with it."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stowage
from distributed.train_ddp import SETTINGS

PACKAGE = Path(stowage.__file__).parent
PROGRAM = Path(__file__).with_name("train_ddp.py")
RANKS = (0, 1)
pytestmark = pytest.mark.slow


def torchrun(*arguments: str | Path) -> subprocess.CompletedProcess:
    """Ends with an exception where the ranks wait for each other for ever."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
                "--nproc-per-node", str(len(RANKS))]
    search = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run([*launcher, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": search, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})


def train(mode: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank wrote."""
    done = torchrun(mode, folder)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{mode}.{rank}.json").read_text()) for rank in RANKS]


@pytest.fixture(scope="module")
def unplanned(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train("unplanned", tmp_path_factory.mktemp("unplanned"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the planned ranks left their stores."""
    return tmp_path_factory.mktemp("planned")


@pytest.fixture(scope="module")
def planned(folder: Path) -> list[dict[str, Any]]:
    return train("planned", folder)


def read_store(folder: Path, rank: int) -> dict[str, Any]:
    """What `stowage info` says of the store of one rank."""
    path = folder / f"profile.rank{rank}.db"
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    done = subprocess.run([sys.executable, "-m", "stowage.cli", "info", str(path), "--json"], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def regions(result: dict[str, Any], count: str) -> int:
    return sum(region[count] for region in result["status"]["regions"])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rank", RANKS)
def test_planned_equals_unplanned(unplanned, planned, rank, setting):
    assert planned[rank]["seen"][setting] == unplanned[rank]["seen"][setting]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_training_is_one_of_two_ranks_and_several_buckets(unplanned, setting):
    first, second = (result["seen"][setting] for result in unplanned)
    assert first["losses"] != second["losses"]  # each has batches of its own
    assert len(set(first["states"])) == len(first["states"])
    assert len(first["buckets"].split(", ")) > 2


def test_rank_0_makes_the_plans_of_steps_for_both(planned):
    made, adopted, followed = [], [], []
    for result in planned:
        (steps,) = result["status"]["steps"]
        phases = [phase for phase in steps["phases"] if phase["state"] == "planned"]
        made.append(sum(phase["plans_made"] for phase in phases))
        adopted.append(sorted(phase["digest"] for phase in phases if phase["adopted"]))
        followed.append(sorted(phase["digest"] for phase in phases if phase["total"]["hits"]["allocations"] > 20))
        assert steps["planned_steps"] > 0.6 * steps["steps"]
    assert made[0] >= 3 and made[1] == 0
    assert adopted[0] == [] and adopted[1] == followed[1] == followed[0]


@pytest.mark.parametrize("rank", RANKS)
def test_each_rank_has_its_own_store(planned, folder, rank):
    status = planned[rank]["status"]
    assert status["store"] == str(folder / f"profile.rank{rank}.db")
    assert status["store_error"] == ""
    assert regions(planned[rank], "plans_made") == 4  # forward and backward, each of two shapes
    assert all(phase["state"] == "planned" and phase["runs"] > 40
               for region in status["regions"] for phase in region["phases"])
    runs = read_store(folder, rank)["runs"]
    assert len(runs) >= 4 and all(run["planned_peak_bytes"] is not None for run in runs)
    assert sorted(path.name for path in folder.glob("*.db")) == ["profile.rank0.db", "profile.rank1.db"]


def test_killing_a_rank_ends_the_training_and_loses_no_store(unplanned, tmp_path):
    ended = torchrun("planned", tmp_path, "--die-in-step", "6")  # when its plans have been made and followed
    assert ended.returncode != 0
    assert "Signal 9 (SIGKILL)" in ended.stderr
    assert list(tmp_path.glob("*.json")) == []
    kept = [[run["name"] for run in read_store(tmp_path, rank)["runs"]] for rank in RANKS]
    assert all(kept)
    again = train("planned", tmp_path)
    for rank in RANKS:
        assert again[rank]["seen"] == unplanned[rank]["seen"]
        graphs = [name for name in kept[rank] if not name.startswith("step on")]
        assert regions(again[rank], "plans_recalled") == len(graphs)
