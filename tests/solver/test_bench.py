# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts/benchmarks/solver.py"
# "Solves" every layout by copying its buffers.
STAND_IN = """#!/usr/bin/env python3
import shutil, sys
options = dict(argument.lstrip("-").split("=") for argument in sys.argv[1:])
assert options["capacity"] == "1048576" and options["timeout"] == "60s"
shutil.copy(options["input"], options["output"])
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCH, *map(str, arguments)], capture_output=True, text=True)


def test_the_benchmark_writes_what_it_measured(solver, tmp_path):
    out = tmp_path / "results/solver.json"
    result = run("--solver", solver, "--out", out, "--repetitions", 2, "--match", "squeezenet")
    assert (result.returncode, result.stderr) == (0, f"wrote {out}\n")
    assert result.stdout.count("1 optimal") == 2  # a row of sums with reuse, and one without
    assert result.stdout.count("1 optimal") == 2  # in the row of sums with reuse and in that without
    written = json.loads(out.read_text())
    assert [(row["step"], row["reuse"]) for row in written["orders"]] == [("squeezenet1_0-bs32-sgdm", True),
                                                                         ("squeezenet1_0-bs32-sgdm", False)]
    with_reuse, without = written["orders"]
    assert with_reuse["peak_bytes"] < without["peak_bytes"] <= without["program_peak_bytes"]
    # Laid out on its own, an order is as high as the plan said.
    assert [row["height_bytes"] for row in written["layouts"]] == [row["arena_bytes"] for row in written["orders"]]
    assert all(row["minimalloc_seconds"] is None for row in written["layouts"])


def test_minimalloc_is_run_on_the_hard_layouts(solver, tmp_path):
    stand_in = tmp_path / "minimalloc"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    out = tmp_path / "solver.json"
    result = run("--solver", solver, "--out", out, "--match", "J.", "--minimalloc", stand_in, "--repetitions", 1)
    assert result.returncode == 0, result.stderr
    [row] = json.loads(out.read_text())["layouts"]
    assert row["layout"] == "J" and row["minimalloc_solved"] and row["minimalloc_seconds"] > 0


@pytest.mark.parametrize(("arguments", "fault"), [
    (["--minimalloc", "nowhere/minimalloc"],
     "scripts/bench solver: error: cannot run 'nowhere/minimalloc': no such program; build it or leave it out"),
    (["--match", "no-such-model"], "cannot measure anything: no name in tests/data holds 'no-such-model'"),
])
def test_the_benchmark_refuses_in_one_line(solver, arguments, fault):
    result = run("--solver", solver, *arguments)
    assert result.returncode != 0 and result.stdout == ""
    assert result.stderr.splitlines()[-1] == fault
