# SPDX-License-Identifier: Apache-2.0
"""What torch's allocator makes of known sequences, and what a layout of the same sequence needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20


@pytest.fixture
def layout(tmp_path):
    """The layout that stowage-solve finds for a sequence, within a capacity if one is given."""
    solver = Path(os.environ.get("STOWAGE_SOLVE", Path(sys.executable).with_name("stowage-solve")))
    if not solver.exists():
        pytest.skip(f"no '{solver}'; run scripts/setup, or set STOWAGE_SOLVE")

    def solve(rows: list, *options: str) -> dict:
        text = "".join(",".join(map(str, row)) + "\n" for row in [("id", "lower", "upper", "size"), *rows])
        (tmp_path / "trace.csv").write_text(text)
        result = subprocess.run([solver, "layout", tmp_path / "trace.csv", "--json", *options], capture_output=True,
                                text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return solve


def test_a_large_block_cannot_be_made_again_once_it_was_split(dry, run_python, layout):
    seen = run_python("fragmentation.py", "split")
    assert "Tried to allocate 1.07 GiB" in seen["ran_out"]
    assert seen["allocated_mib"] == 30 * (16 + 17)
    assert seen["allocated_mib"] + 1100 <= 2100  # there are enough bytes
    found = layout(seen["rows"], "--capacity", str(2100 * MIB))
    assert found["height_bytes"] <= 2100 * MIB


@pytest.mark.parametrize(("case", "config", "reserved"), [
    ("small_first", "", 256),
    ("large_first", "", 128),
    # In steps of 20 MiB.
    ("small_first", "expandable_segments:True", 140),
    ("large_first", "expandable_segments:True", 140),
])
def test_the_order_of_sizes_doubles_what_is_reserved(dry, run_python, layout, case, config, reserved):
    seen = run_python("fragmentation.py", case, PYTORCH_ALLOC_CONF=config)
    assert seen["reserved_mib"] == reserved
    assert layout(seen["rows"])["height_bytes"] == 128 * MIB


@pytest.mark.parametrize("config", ["", "expandable_segments:True"])
def test_live_blocks_in_between_make_what_is_reserved_grow(dry, run_python, layout, config):
    seen = run_python("fragmentation.py", "interleaved", PYTORCH_ALLOC_CONF=config)
    assert seen["allocated_mib"] == 64
    assert seen["reserved_mib"] > 64
    assert layout(seen["rows"])["height_bytes"] == 64 * MIB
