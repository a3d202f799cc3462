# SPDX-License-Identifier: Apache-2.0
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("stowage") is None:  # not installed: the package's source, with STOWAGE_LIBRARY
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import stowage

torch.set_num_threads(1)  # threads that wait for each other are slow on a busy machine, and these programs are small


DEFAULTS = {"plan": "1", "reuse": "1", "reuse_ops": "", "verify": "0", "meter": "0", "min_ops": "4", "max_plans": "8",
            "max_profile_runs": "8", "scripted_steps": "1", "store": "", "budget": "", "slowdown": "",
            "over_budget": "continue", "deadline_ms": "10000"}


@pytest.fixture(autouse=True)
def switched_off():
    """Each test enables stowage itself, with freed memory poisoned, and leaves it disabled."""
    stowage.disable()
    stowage.set_option("poison", "1")
    yield
    stowage.disable()
    for option, default in DEFAULTS.items():
        stowage.set_option(option, default)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write golden files anew; read the change before you commit it")
