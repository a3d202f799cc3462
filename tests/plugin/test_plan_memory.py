# SPDX-License-Identifier: Apache-2.0
"""Plans outlive the process in the store, and a bad store never stops training."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch
from planning import compile, newest_region, planned_phase, run

PROGRAM = """
import json, os, sys
import stowage, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
stowage.enable(sys.argv[1])
model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x, y = torch.randn(6, 20), torch.randint(10, (6,))
step = stowage.capture(model, nn.functional.cross_entropy, optimizer, x, y, strict=True)
losses = [step(x, y).item().hex() for _ in range(7)]
print(json.dumps({"losses": losses, "region": stowage.status()["regions"][-1], "report": str(stowage.report())}))
"""

SOURCE = """
def step(x):
    a = torch.cat([x, x]).exp()
    b = a.sin() + a
    return b.cos().sum(), a * 2
"""


def inputs() -> tuple:
    return (torch.randn(500),)


def run_program(store: Path, **environment: str) -> tuple[dict, str]:
    path = os.pathsep.join([str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(store)], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": path, **environment})
    return json.loads(done.stdout), done.stderr


def test_second_process_profiles_nothing_and_plans_nothing(tmp_path):
    first, _ = run_program(tmp_path / "profile.db")
    second, _ = run_program(tmp_path / "profile.db")
    kept = ("runs_profiled", "plans_made", "plans_recalled")
    assert [first["region"][key] for key in kept] == [2, 1, 0]
    assert [second["region"][key] for key in kept] == [0, 0, 1]
    assert second["region"]["phases"][0]["recalled"] is True
    assert second["region"]["phases"][0]["runs"] == 6  # TorchScript itself takes the first call to profile
    assert second["losses"] == first["losses"]
    assert "plans made: 0, recalled from the store: 1, runs profiled: 0" in second["report"]


def test_file_is_whole_by_itself_after_the_process(tmp_path):
    run_program(tmp_path / "profile.db")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.db"]


def test_option_from_the_environment(tmp_path):
    result, _ = run_program(tmp_path / "profile.db", STOWAGE_PLAN="0")
    assert result["region"]["runs_as_is"] == 6
    _, told = run_program(tmp_path / "profile.db", STOWAGE_PLAN="maybe")
    assert "stowage: ignoring STOWAGE_PLAN: cannot set option 'plan' to 'maybe': it is a switch; use '1' or '0'" in told


@pytest.mark.parametrize(
    ("name", "rank", "world_size", "file"),
    [
        ("profile.db", "1", "2", "profile.rank1.db"),
        ("profile.db", "0", "2", "profile.rank0.db"),
        ("first.run.db", "11", "16", "first.run.rank11.db"),
        ("profile", "1", "2", "profile.rank1"),
        (".hidden", "1", "2", ".hidden.rank1"),
        ("in.folder/profile", "1", "2", "in.folder/profile.rank1"),
        ("profile.db", "0", "1", "profile.db"),
        ("profile.db", None, "2", "profile.db"),
        ("profile.db", "1", None, "profile.db"),
        ("profile.db", "one", "2", "profile.db"),
        ("profile.db", "-1", "2", "profile.db"),
    ],
)
def test_each_rank_has_a_file_of_its_own(tmp_path, monkeypatch, name, rank, world_size, file):
    for variable, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    (tmp_path / "in.folder").mkdir()
    stowage.enable(tmp_path / name)
    assert stowage.status()["store"] == str(tmp_path / file)
    assert (tmp_path / file).is_file()
    assert f"store: {tmp_path / file}" in stowage.report().splitlines()
    stowage.disable()
    assert stowage.status()["store"] == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / file]


def trains_on_without(store: Path, capfd) -> str:
    """Trains with a store that cannot be used; returns what was told."""
    expected = run(compile(SOURCE), inputs)
    stowage.enable(store)
    function = compile(SOURCE)
    assert run(function, inputs) == expected
    planned_phase()
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("stowage: cannot")]
    assert len(told) == 1
    assert told[0].endswith("; going on without a store: plans are not remembered")
    assert stowage.status()["store_error"] in told[0]
    return told[0]


def test_store_of_a_newer_schema_is_left_untouched(tmp_path, capfd):
    path = tmp_path / "new.db"
    run_program(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    assert "schema 99" in trains_on_without(path, capfd)
    assert path.read_bytes() == before


def test_truncated_store(tmp_path, capfd):
    path = tmp_path / "cut.db"
    run_program(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 100])
    before = path.read_bytes()
    assert str(path) in trains_on_without(path, capfd)
    assert path.read_bytes() == before


def test_store_in_a_folder_that_cannot_be_written(tmp_path, capfd):
    (tmp_path / "file").write_text("not a folder")
    assert "profile.db" in trains_on_without(tmp_path / "file" / "profile.db", capfd)


def test_spoilt_plan_in_the_store_is_refused_and_made_anew(tmp_path, capfd):
    path = tmp_path / "spoilt.db"
    first, _ = run_program(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE slots SET offset_bytes = 0")
    connection.close()
    second, told = run_program(path)
    assert "stowage: cannot use the plan of 'Sequential': " in told
    assert second["losses"] == first["losses"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("poisn", "1", "cannot set option 'poisn': there is no such option; use one of store, plan, reuse, reuse_ops, poison, "
                       "meter, verify, min_ops, max_profile_runs, max_plans, max_step_plans, scripted_steps, share_plans, deadline_ms, "
                       "budget, slowdown, over_budget, offload, offload_bandwidth"),
        ("min_ops", "few", "cannot set option 'min_ops' to 'few': it takes a whole number from 1"),
        ("poison", "2", "cannot set option 'poison' to '2': it is a switch; use '1' or '0'"),
    ],
)
def test_bad_option(name, value, text):
    with pytest.raises(Exception) as raised:
        stowage.set_option(name, value)
    assert str(raised.value).splitlines()[0] == text


def test_small_graph_is_left_alone_and_says_why():
    stowage.set_option("min_ops", "100")
    stowage.enable()
    run(compile(SOURCE), inputs, calls=3)
    assert "fewer than the option min_ops (100)" in stowage.status()["left_alone"][-1]["why"]


def test_planned_graph_of_an_unknown_region():
    stowage.enable()
    function = compile(SOURCE)
    run(function, inputs)
    with pytest.raises(Exception, match="cannot print the planned graph of 'nobody': there is no such region; there are "):
        stowage.planned_graph("nobody")
    assert newest_region()["name"] in stowage.planned_graph(newest_region()["name"])
