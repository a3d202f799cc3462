# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drycuda import control

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if control.is_present():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="run as `scripts/drycuda python -m pytest tests/drycuda`"))


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    if control.is_present():
        control.reset_counts()


@pytest.fixture
def run_python() -> Callable[..., Any]:
    """Runs a program in a process of its own, with more environment variables; returns the JSON that it prints."""

    def run(program: str, **environment: str) -> Any:
        search = os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", "")))
        result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, timeout=300, env={**os.environ, "PYTHONPATH": search, **environment})
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run
