# SPDX-License-Identifier: Apache-2.0
"""What cannot be shown is refused in one line on stderr, exit 1; a wrong command line exits 2."""

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.sample_store import ON_CUDA, SCHEMA, STEP, Stowage, change_store, damaged_copies, make_store

from stowage.store import SCHEMA_VERSION, Store

DAMAGED = "the file is damaged: move it away and profile again"
NO_STORE = "the file is damaged, cut short or no store: move it away and profile again"


def refuse(stowage: Stowage, *arguments: str) -> str:
    """Runs a command that must fail with one line; returns that line."""
    result = stowage(*arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("stowage: cannot ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("stowage: ").rstrip("\n")


@pytest.mark.parametrize("command", [["info"], ["ops"], ["ops", "--planned"], ["kernels"], ["tensors"], ["peak"],
                                     ["plan"]])
def test_every_command_refuses_a_missing_file(stowage: Stowage, command: list[str]) -> None:
    expected = "cannot open store 'nowhere.db': no such file; check the path"
    assert refuse(stowage, command[0], "nowhere.db", *command[1:]) == expected
    assert refuse(stowage, "sql", "nowhere.db", "SELECT 1") == expected


def test_the_schema_is_the_one_that_profiler_writes() -> None:
    versions = re.findall(r"^-- === version (\d+)", SCHEMA, re.MULTILINE)
    assert [int(version) for version in versions] == list(range(1, SCHEMA_VERSION + 1))


def test_folder(stowage: Stowage, tmp_path: Path) -> None:
    (tmp_path / "dir.db").mkdir()
    assert refuse(stowage, "info", "dir.db") == "cannot open store 'dir.db': it is a folder; name the file in it"


def test_empty_file(stowage: Stowage, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    assert refuse(stowage, "info", "empty.db") == (
        "cannot open store 'empty.db': it is empty; profile a run into it first")


def test_another_kind_of_file(stowage: Stowage, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a store " * 500)
    assert refuse(stowage, "info", "text.db") == f"cannot open store 'text.db': file is not a database; {NO_STORE}"


def test_another_programs_database(stowage: Stowage, tmp_path: Path) -> None:
    change_store(tmp_path / "other.db", "CREATE TABLE runs (id INTEGER)")
    assert refuse(stowage, "info", "other.db") == (
        "cannot open store 'other.db': it is another program's SQLite file; choose another path")


def test_truncated_store(stowage: Stowage, store: Path) -> None:
    os.truncate(store, store.stat().st_size // 2)
    assert refuse(stowage, "info", "run.db") == (
        f"cannot open store 'run.db': database disk image is malformed; {NO_STORE}")


def test_newer_schema(stowage: Stowage, store: Path) -> None:
    change_store(store, "PRAGMA user_version = 7")
    assert refuse(stowage, "info", "run.db") == (
        "cannot open store 'run.db': schema 7, this build reads 6; profile again into another file or use a newer "
        "stowage")


def test_older_schema(stowage: Stowage, store: Path) -> None:
    change_store(store, "PRAGMA user_version = 1")
    assert refuse(stowage, "info", "run.db") == (
        "cannot open store 'run.db': schema 1, this build reads 6; train with it once, which migrates it")


def test_store_without_runs(stowage: Stowage, tmp_path: Path) -> None:
    change_store(tmp_path / "new.db", SCHEMA)
    assert refuse(stowage, "peak", "new.db") == (
        "cannot choose a run of store 'new.db': it has none; profile a run into it first")
    assert stowage("info", "new.db").returncode == 0


def test_unknown_run(stowage: Stowage, store: Path) -> None:
    assert refuse(stowage, "ops", "run.db", "--run", "9") == (
        "cannot find run 9 in store 'run.db': it has runs 1 to 3; list them with 'stowage info'")


@pytest.mark.parametrize("command", [["plan"], ["ops", "--planned"]])
def test_run_without_a_plan(stowage: Stowage, store: Path, command: list[str]) -> None:
    assert refuse(stowage, *command, "run.db", "--run", "3") == (
        "cannot show the plan of run 3 in store 'run.db': it has none; choose a planned run from 'stowage info'")


@pytest.mark.parametrize(("change", "finding"), [
    ("UPDATE uses SET op = 99 WHERE use = 3", "uses name op 99"),
    ("UPDATE allocations SET tensor = -1 WHERE allocation = 0", "allocations name tensor -1"),
    ("UPDATE allocations SET free_op = 6 WHERE allocation = 0", "allocations name op 6"),
    ("UPDATE plan_order SET op = 77 WHERE step = 2", "plan_order name op 77"),
    ("DELETE FROM tensors WHERE tensor = 8", "uses name tensor 8"),
    (f"{ON_CUDA}; UPDATE kernels SET op = 8 WHERE kernel = 1", "kernels name op 8"),
    (f"{ON_CUDA}; UPDATE copies SET op = 9 WHERE copy = 1", "copies name op 9"),
    (f"{ON_CUDA}; UPDATE device_memory SET op = -1 WHERE change = 1", "device_memory name op -1"),
    (f"{ON_CUDA}; UPDATE device_memory SET allocation = 6 WHERE change = 1", "device_memory name allocation 6"),
    (f"{STEP}; UPDATE carried SET run_id = 2, allocation = 7", "carried name allocation 7"),
    (f"{STEP}; UPDATE carried SET run_id = 2, free_op = 9", "carried name op 9"),
])
def test_rows_that_name_what_is_not_there(stowage: Stowage, store: Path, change: str, finding: str) -> None:
    change_store(store, change)
    assert refuse(stowage, "peak", "run.db", "--run", "2") == (
        f"cannot read run 2 of store 'run.db': {finding}, which is not there; {DAMAGED}")


def test_run_without_kernels(stowage: Stowage, store: Path) -> None:
    assert refuse(stowage, "kernels", "run.db") == (
        "cannot show the kernels of run 2 in store 'run.db': it has none; profile on CUDA, where CUPTI may be used")


def test_missing_table(stowage: Stowage, store: Path) -> None:
    change_store(store, "DROP VIEW planned_timeline")
    assert refuse(stowage, "peak", "run.db") == f"cannot read store 'run.db': no such table: planned_timeline; {DAMAGED}"


@pytest.mark.parametrize(("query", "why"), [
    ("SELEKT", 'near "SELEKT": syntax error'),
    ("SELECT bytes FROM ops", "no such column: bytes"),
    ("DELETE FROM runs", "attempt to write a readonly database"),
    ("ATTACH 'made.db' AS made", "not authorized"),
    ("VACUUM INTO 'made.db'", "cannot VACUUM from within a transaction"),
    ("SELECT 1; SELECT 2", "you can only execute one statement at a time"),
])
def test_bad_sql(stowage: Stowage, store: Path, query: str, why: str) -> None:
    before = store.read_bytes()
    assert refuse(stowage, "sql", "run.db", query) == (
        f"cannot run SQL on store 'run.db': {why}; to see its tables, ask for \"SELECT name, sql FROM sqlite_schema\"")
    assert store.read_bytes() == before
    assert not store.with_name("made.db").exists()


def test_sql_that_asks_for_nothing(stowage: Stowage, store: Path) -> None:
    for nothing in ("", "/* only a remark */"):
        assert refuse(stowage, "sql", "run.db", nothing) == (
            "cannot run SQL on store 'run.db': it asks for nothing; begin with SELECT")


@pytest.mark.parametrize("arguments", [
    ["frobnicate"], ["info"], ["info", "run.db", "--frobnicate"], ["ops", "run.db", "--run", "two"],
    ["tensors", "run.db", "--limit", "-1"], ["sql", "run.db"],
])
def test_usage_errors(stowage: Stowage, store: Path, arguments: list[str]) -> None:
    result = stowage(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: stowage ") and "\nError: " in result.stderr


def test_a_writer_at_work_is_not_waited_for_nor_disturbed(stowage: Stowage, store: Path) -> None:
    writer = sqlite3.connect(store, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM plans")
    assert "13.00 MiB" in stowage("info", "run.db").stdout  # as before the writer's transaction
    writer.execute("COMMIT")
    assert "13.00 MiB" not in stowage("info", "run.db").stdout
    writer.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def read_as_ordinary_user(store: Path) -> tuple[int, str]:
    """Lists a store's runs as someone whom file permissions bind, unlike a superuser: 0, or 1 and the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(store.parent)
            if os.geteuid() == 0:
                os.setuid(65534)
            with Store(store.name) as opened:
                os._exit(0 if len(opened.runs()) == 3 else 2)
        except BaseException as error:
            os.write(writing, str(error).encode())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as errors:
        text = errors.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def test_a_store_in_a_read_only_folder_is_read_as_it_lies(open_folder: Path) -> None:
    make_store(open_folder / "run.db")
    open_folder.chmod(0o555)
    assert read_as_ordinary_user(open_folder / "run.db") == (0, "")
    open_folder.chmod(0o755)


def test_a_log_in_a_read_only_folder_is_not_passed_over(open_folder: Path) -> None:
    make_store(open_folder / "run.db")
    writer = sqlite3.connect(open_folder / "run.db")
    writer.execute("UPDATE runs SET name = 'newer'")
    writer.commit()
    (open_folder / "copy.db").write_bytes((open_folder / "run.db").read_bytes())
    (open_folder / "copy.db-wal").write_bytes((open_folder / "run.db-wal").read_bytes())
    writer.close()
    open_folder.chmod(0o555)
    assert read_as_ordinary_user(open_folder / "copy.db") == (
        1, "cannot open store 'copy.db': its last runs are in a log that SQLite reads only in a folder it may write to; "
           "copy the file and 'copy.db-wal' to one")
    open_folder.chmod(0o755)


def test_unreadable_file(open_folder: Path) -> None:
    make_store(open_folder / "run.db")
    (open_folder / "run.db").chmod(0)
    assert read_as_ordinary_user(open_folder / "run.db") == (
        1, "cannot open store 'run.db': permission denied; choose a store that you may read")


def test_whatever_bytes_are_wrong_the_answer_is_a_line(stowage: Stowage, store: Path) -> None:
    change_store(store, ON_CUDA)
    commands = (["info"], ["ops"], ["ops", "--planned"], ["kernels"], ["tensors"], ["peak"], ["plan"])
    refused = 0
    for seed, copy in damaged_copies(store, 200):
        command = commands[seed % len(commands)]
        result = stowage(command[0], copy, *command[1:])
        assert result.returncode in (0, 1), f"seed {seed}"
        if result.returncode == 1:
            refused += 1
            assert result.stderr.startswith("stowage: cannot ") and result.stderr.count("\n") == 1, f"seed {seed}"
    assert refused > 0
