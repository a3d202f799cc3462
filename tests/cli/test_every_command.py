# SPDX-License-Identifier: Apache-2.0
"""What holds for every command that the command line has."""

import csv
import io
import json
import os
import random
import re
from pathlib import Path

import pytest
from cli.every_command import COMMANDS, ON_FILES, ON_STORES, commands, has_option, line, reads_stores
from cli.sample_store import ON_CUDA, SCHEMA, STEP, Stowage, change_store, damaged_copies, make_store

from stowage.store import SCHEMA_VERSION

def empty_file(path: Path) -> None:
    path.touch()


def empty_store(path: Path) -> None:
    change_store(path, f"BEGIN; {SCHEMA}; COMMIT")


def damaged_schema(path: Path) -> None:
    make_store(path)
    change_store(path, "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'CREATE nonsense' WHERE name = 'ops'")


def newer_schema(path: Path) -> None:
    make_store(path)
    change_store(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def older_schema(path: Path) -> None:
    make_store(path)
    change_store(path, f"PRAGMA user_version = {SCHEMA_VERSION - 1}")


def cut_short(path: Path) -> None:
    make_store(path)
    os.truncate(path, path.stat().st_size // 2)


def random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(40_000))


def a_store_in_name(path: Path) -> None:
    make_store(path)
    content = path.read_bytes()
    path.write_bytes(content[:100] + random.Random(2).randbytes(len(content) - 100))


def another_programs(path: Path) -> None:
    change_store(path, "CREATE TABLE runs (id INTEGER)")


def folder(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    pass


# Files from which nothing can be read.
UNREADABLE = (empty_file, damaged_schema, newer_schema, older_schema, cut_short, random_bytes, a_store_in_name,
              another_programs, folder, nothing)

# Stores that can be read, and lack something: what cannot be answered then is refused.
LACKING = {
    "no run": "PRAGMA foreign_keys = ON; DELETE FROM runs",
    "partial runs": "UPDATE runs SET complete = 0",
    "partial runs of a loop": f"{STEP}; UPDATE runs SET complete = 0",
    "no plan": "DELETE FROM plans",
    "lossy": "UPDATE runs SET dropped_records = 7",
    "no ops": "PRAGMA foreign_keys = OFF; DELETE FROM ops; DELETE FROM uses; DELETE FROM allocations; DELETE FROM plan_order; "
              "DELETE FROM points; DELETE FROM slots",
    "dangling op": "UPDATE uses SET op = 99 WHERE use = 3",
    "dangling allocation": "UPDATE allocations SET op = 77 WHERE allocation = 5",
    "dangling tensor": "DELETE FROM tensors WHERE run_id = 2 AND tensor = 5",
    "no table": "DROP TABLE allocations",
    "damaged text": "UPDATE ops SET name = CAST(x'ff00fe1b' AS TEXT), source = CAST(x'c3' AS TEXT)",
    "odd order": "UPDATE plan_order SET step = step + 90 WHERE step > 2",
}


def is_one_line(errors: str) -> bool:
    return bool(re.fullmatch(r"stowage: cannot [^\n]+: [^\n]+\n", errors))


@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ON_STORES)
def test_a_file_that_is_no_store_is_refused_in_one_line(stowage: Stowage, tmp_path: Path, name: str, make) -> None:
    make(tmp_path / "run.db")
    result = stowage(*line(name, "run.db"))
    assert (result.returncode, result.stdout, is_one_line(result.stderr)) == (1, "", True), result.stderr
    assert "run.db" in result.stderr


@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ON_FILES)
def test_a_file_of_another_kind_is_refused_in_one_line(stowage: Stowage, tmp_path: Path, name: str, make) -> None:
    make(tmp_path / "run.db")
    result = stowage(*line(name, "run.db"))
    assert result.returncode in (1, 2)
    assert (result.stdout, is_one_line(result.stderr)) == ("", True), result.stderr


@pytest.mark.parametrize("lack", LACKING)
@pytest.mark.parametrize("name", ON_STORES)
def test_what_a_store_lacks_is_said_in_one_line(stowage: Stowage, store: Path, name: str, lack: str) -> None:
    """Or the command does without it."""
    change_store(store, LACKING[lack])
    at = [*(["--at", "0"] if has_option(name, "--at") else []), *(["--events"] if has_option(name, "--events") else [])]
    for options in ([], ["--run", "2"], ["--json"], ["--csv"], ["--planned", *at]):
        if options and not has_option(name, options[0]):
            continue
        result = stowage(*line(name, "run.db", *options))
        notes = [text for text in result.stderr.splitlines(keepends=True) if not is_one_line(text)]
        assert all(text.startswith("stowage: ") for text in notes), result.stderr
        if result.returncode == 0:
            assert len(notes) == result.stderr.count("\n"), result.stderr
        else:
            assert (result.returncode, result.stderr.count("\n") - len(notes)) == (1, 1), result.stderr


@pytest.mark.parametrize("name", [name for name in ON_STORES if name not in ("info", "sql")])
def test_an_empty_store_has_nothing_to_show(stowage: Stowage, tmp_path: Path, name: str) -> None:
    empty_store(tmp_path / "run.db")
    result = stowage(*line(name, "run.db"))
    assert (result.returncode, result.stdout, is_one_line(result.stderr)) == (1, "", True), result.stderr


def test_info_says_that_a_store_is_empty(stowage: Stowage, tmp_path: Path) -> None:
    empty_store(tmp_path / "run.db")
    result = stowage("info", "run.db")
    assert (result.returncode, result.stderr) == (0, "stowage: the store has no runs yet; profile a run into it\n")


@pytest.mark.parametrize("name", ON_STORES)
def test_whatever_bytes_are_wrong_the_answer_is_a_line(stowage: Stowage, store: Path, name: str) -> None:
    change_store(store, ON_CUDA + STEP)
    refused = 0
    for seed, copy in damaged_copies(store, 40):
        result = stowage(*line(name, copy))
        assert result.returncode in (0, 1), f"seed {seed}"
        if result.returncode == 1:
            refused += 1
            assert is_one_line(result.stderr.splitlines(keepends=True)[-1]), f"seed {seed}: {result.stderr}"
    assert refused > 0


# --- what each offers --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(stowage: Stowage, name: str) -> None:
    result = stowage(name, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: stowage {name} ")
    assert f"Example: stowage {name} " in result.stdout
    assert result.stdout.isascii()


@pytest.mark.parametrize("name", [name for name in ON_STORES if has_option(name, "--csv")])
def test_csv_is_a_table_of_what_json_says(stowage: Stowage, store: Path, name: str) -> None:
    change_store(store, ON_CUDA + "UPDATE ops SET repeatable = 1")
    as_json, as_csv = (stowage(*line(name, "run.db", form)) for form in ("--json", "--csv"))
    if as_json.returncode == 1:  # such as a command that plans, where there is no solver
        assert as_csv.stderr == as_json.stderr
        return
    assert (as_json.returncode, as_csv.returncode) == (0, 0)
    json.loads(as_json.stdout)
    rows = list(csv.reader(io.StringIO(as_csv.stdout)))
    assert len({len(row) for row in rows}) == 1
    assert all(re.fullmatch(r"\w+", column) for column in rows[0])
    assert not re.search(r"\d (KiB|MiB|ms|us)\b", as_csv.stdout)


@pytest.mark.parametrize("name", [name for name in ON_STORES if has_option(name, "--json") and has_option(name, "--csv")])
@pytest.mark.parametrize("options", [["--json", "--csv"], ["--csv", "--json"]])
def test_one_form_at_a_time(stowage: Stowage, store: Path, name: str, options: list[str]) -> None:
    result = stowage(*line(name, "run.db", *options))
    assert (result.returncode, result.stdout, result.stderr) == (
        2, "", "stowage: --json and --csv exclude one another; give one\n")


@pytest.mark.parametrize("name", ON_STORES)
def test_it_runs_where_torch_cannot_be_imported(stowage: Stowage, stowage_process: Stowage, store: Path,
                                                monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("STOWAGE_SOLVE", "nowhere/stowage-solve")
    here, apart = stowage(*line(name, "run.db")), stowage_process(*line(name, "run.db"))
    assert (apart.returncode, apart.stdout, apart.stderr) == (here.returncode, here.stdout, here.stderr)


def test_there_are_commands_to_test() -> None:
    assert {"info", "ops", "peak", "timeline", "tensors", "plan", "budget", "diff", "sql", "explain", "order", "graph",
            "report", "export"} <= set(ON_STORES)
    assert "verify" in COMMANDS and not reads_stores(commands()["verify"])
