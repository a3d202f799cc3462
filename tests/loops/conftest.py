# SPDX-License-Identifier: Apache-2.0
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("stowage") is None:  # not installed: the package's source, with STOWAGE_LIBRARY
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import stowage

from loops.modes import MODES, Mode

torch.set_num_threads(1)  # threads that wait for each other are slow on a busy machine, and these programs are small


@pytest.fixture(autouse=True)
def switched_off():
    """Each test enables stowage itself, with freed memory poisoned, and leaves it disabled."""
    stowage.disable()
    stowage.set_option("poison", "1")
    yield
    stowage.disable()
    stowage.set_option("store", "")


@pytest.fixture(params=MODES, ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param
