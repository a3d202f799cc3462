# SPDX-License-Identifier: Apache-2.0
"""`--csv`: the rows of `--json`, for every command that prints a table."""

import csv
import io
import json
from pathlib import Path

import pytest
from cli.sample_store import ON_CUDA, Stowage, change_store

ROWS_OF = {"info": "runs", "ops": "ops", "kernels": "kernels", "tensors": "tensors", "plan": "order"}


def table(stowage: Stowage, *arguments: str) -> list[dict[str, str]]:
    result = stowage(*arguments, "--csv")
    assert (result.returncode, result.stderr) == (0, "")
    return list(csv.DictReader(io.StringIO(result.stdout)))


def as_text(row: dict) -> dict[str, str]:
    """A row of JSON as CSV writes it."""
    return {name: "" if value is None else value if isinstance(value, str) else json.dumps(value)
            for name, value in row.items()}


@pytest.mark.parametrize("arguments", [["info"], ["ops"], ["ops", "--planned", "--limit", "0"], ["kernels"], ["tensors"],
                                       ["plan"]])
def test_the_rows_are_those_of_json(stowage: Stowage, store: Path, arguments: list[str]) -> None:
    change_store(store, ON_CUDA)
    command = [arguments[0], "run.db", *arguments[1:]]
    rows = json.loads(stowage(*command, "--json").stdout)[ROWS_OF[arguments[0]]]
    assert table(stowage, *command) == [as_text(row) for row in rows] != []


def test_slots(stowage: Stowage, store: Path) -> None:
    rows = json.loads(stowage("plan", "run.db", "--slots", "--json").stdout)["slots"]
    assert table(stowage, "plan", "run.db", "--slots") == [as_text(row) for row in rows] != []


def test_both_sides_of_the_peak(stowage: Stowage, store: Path) -> None:
    answer = json.loads(stowage("peak", "run.db", "--json").stdout)
    assert table(stowage, "peak", "run.db") == [
        as_text({"when": when, **tensor}) for when in ("before", "after") for tensor in answer[when]["tensors"]]


def test_sql(stowage: Stowage, store: Path) -> None:
    assert stowage("sql", "run.db", "SELECT 'a,b' AS a, x'00ff' AS b, NULL AS c", "--csv").stdout == (
        'a,b,c\n"a,b",00ff,\n')
    assert stowage("sql", "run.db", "SELECT op, name FROM ops WHERE run_id = 9", "--csv").stdout == "op,name\n"


@pytest.mark.parametrize("options", [["--json", "--csv"], ["--csv", "--json"]])
def test_one_form_at_a_time(stowage: Stowage, store: Path, options: list[str]) -> None:
    result = stowage("ops", "run.db", *options)
    assert (result.returncode, result.stdout, result.stderr) == (
        2, "", "stowage: --json and --csv exclude one another; give one\n")
