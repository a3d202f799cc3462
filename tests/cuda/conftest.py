# SPDX-License-Identifier: Apache-2.0
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stowage
import torch

from drycuda import control

HERE = Path(__file__).parent
DEFAULTS = {"plan": "1", "poison": "0", "reuse": "1", "verify": "0", "min_ops": "4", "max_plans": "8",
            "max_profile_runs": "8", "store": ""}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device; run as `scripts/drycuda python -m pytest tests/cuda`")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test enables stowage itself, with freed memory poisoned, and leaves it disabled and the device empty."""
    stowage.disable()
    stowage.set_option("poison", "1")
    reset_device()
    yield
    stowage.disable()
    gc.collect()  # scripted functions of the test may be garbage that still counts as alive
    for option, default in DEFAULTS.items():
        stowage.set_option(option, default)
    reset_device()


def reset_device() -> None:
    if not control.is_present():
        return
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    control.reset_counts()


@pytest.fixture
def dry() -> Any:
    """What dry CUDA is asked; at the end it must have seen no wrong use of memory, streams and captures."""
    if not control.is_present():
        pytest.skip("needs dry CUDA; run as `scripts/drycuda python -m pytest tests/cuda`")
    yield control
    assert control.violations() == []


@pytest.fixture
def witness(dry: Any) -> Callable[..., Any]:
    """`with witness():` finds memory that is given out twice. Results are not written over inputs then, which would be
    just that."""
    stowage.set_option("reuse", "0")
    return dry.witness


@pytest.fixture
def run_python() -> Callable[..., Any]:
    """Runs a file of this folder in a process of its own, with arguments and more environment variables; returns the
    JSON that it prints last."""

    def run(program: str, *arguments: str, **environment: str) -> Any:
        search = os.pathsep.join((str(HERE.parent), str(HERE.parent / "plugin"), *sys.path))
        result = subprocess.run([sys.executable, str(HERE / program), *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=300,
                                env={**os.environ, "PYTHONPATH": search, **environment})
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run
