# SPDX-License-Identifier: Apache-2.0
"""The scripts that people type: from any folder, quick and quiet when there is nothing to do."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
needs_set_up = pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="not run by scripts/test: not set up")


def run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([str(ROOT / "scripts" / script), *arguments], cwd=cwd, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


@needs_set_up
def test_setup_says_and_does_nothing_when_nothing_changed(tmp_path):
    start = time.monotonic()
    result = run("setup", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert time.monotonic() - start < 2
    assert list(tmp_path.iterdir()) == []


@needs_set_up
def test_the_tests_refuse_an_unknown_room(tmp_path):
    result = run("test", "attic", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    rooms = ("capture, cli, cuda, distributed, drycuda, fuzz, gpu, house, install, loops, plugin, profiler, report, "
             "soak, solver, tutorial")
    assert f"cannot test 'attic': no such room; choose from {rooms}" in result.stderr


def test_bench_without_a_name_lists_the_benchmarks(tmp_path):
    result = run("bench", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == "usage: scripts/bench NAME [OPTIONS], where NAME is one of:"
    assert "step" in result.stderr.splitlines()[1:]
