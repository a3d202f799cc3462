# SPDX-License-Identifier: Apache-2.0
"""A few programs of the soak on dry CUDA: none is given memory that another tensor has."""

import pytest
from soak.program import MODES
from soak.soak import Soak


@pytest.mark.parametrize("mode", MODES)
def test_no_program_is_given_memory_twice(dry, mode):
    soak = Soak(mode)
    assert soak.device == "cuda"
    soak.run(range(8), jobs=2)
    assert soak.failures == {}
    assert soak.count["planned"] >= 6


def test_memory_that_is_given_twice_is_found(dry):
    soak = Soak("scripted", "shared-memory")
    soak.run(range(20), jobs=1)
    assert soak.failures
    assert all(" is live" in failure for failure in soak.failures.values()), soak.failures
