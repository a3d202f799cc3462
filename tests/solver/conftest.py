# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def solver() -> Path:
    """The program: what STOWAGE_SOLVE names, or else what scripts/setup installed."""
    program = Path(os.environ.get("STOWAGE_SOLVE", Path(sys.executable).with_name("stowage-solve")))
    assert program.exists(), f"cannot run '{program}': it is not there; run scripts/setup or set STOWAGE_SOLVE"
    return program


@pytest.fixture
def order(solver: Path, tmp_path: Path) -> Callable[..., dict]:
    """Plans a step with `stowage-solve order OPTION...` and returns what it says. A step whose test fails stays in the
    test's folder, whose name is in the failure."""

    def run(step: dict, *options: str) -> dict:
        path = tmp_path / f"{step['name'].replace(' ', '-')}.json"
        path.write_text(json.dumps(step))
        result = subprocess.run([solver, "order", path, "--json", *options], capture_output=True, text=True)
        assert result.returncode == 0, f"{path}: {result.stderr}"
        return {**json.loads(result.stdout), "file": str(path)}

    return run
