# SPDX-License-Identifier: Apache-2.0
"""The package without torch, without its plugin, and with a plugin for another torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stowage
import torch
from stowage import plugin, reporting

PACKAGE = Path(stowage.__file__).parent


def test_importing_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import stowage; print(stowage.__all__)"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "['CaptureError', 'capture', 'disable', 'enable', 'mark_step', 'planned_graph', 'report', 'set_option', 'status', "
        "'step']\n"
    )


def test_unknown_names():
    with pytest.raises(AttributeError, match="^module 'stowage' has no attribute 'plan'$"):
        stowage.plan


@pytest.fixture
def unloaded(monkeypatch):
    monkeypatch.setattr(plugin, "_loaded", False)


def test_a_missing_plugin(unloaded, monkeypatch, tmp_path):
    monkeypatch.setenv("STOWAGE_LIBRARY", str(tmp_path / "libstowage.so"))
    with pytest.raises(RuntimeError) as raised:
        stowage.enable()
    assert str(raised.value) == (
        f"cannot load stowage: '{tmp_path}/libstowage.so' not found; build the plugin, or set STOWAGE_LIBRARY to it"
    )


def test_a_plugin_for_another_torch_is_refused_before_it_is_loaded(unloaded, monkeypatch, tmp_path):
    (tmp_path / "libstowage.so").write_bytes(b"no library at all")
    (tmp_path / "build_info.py").write_text('TORCH_VERSION = "2.11.0+cpu"\n')
    monkeypatch.setenv("STOWAGE_LIBRARY", str(tmp_path / "libstowage.so"))
    monkeypatch.setattr(torch, "__version__", "2.10.0+cu130")
    with pytest.raises(RuntimeError) as raised:
        stowage.status()
    assert str(raised.value) == (
        "cannot load stowage: built for torch 2.11.0, found 2.10.0; install stowage again in this environment"
    )
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    with pytest.raises(OSError):  # the same release: now the loader has its say
        stowage.status()


def test_report():
    def count(allocations):
        return {"allocations": allocations, "bytes": 64 * allocations}

    planned = {
        "state": "planned",
        "runs": 7,
        "program_peak_bytes": 5 << 20,
        "peak_bytes": 4 << 20,
        "bound_bytes": 4 << 20,
        "arena_bytes": 3000,
        "planning_ns": 123_000_000,
        "last": {"hits": count(90), "reused": count(12), "misses": {"size": count(2), "order": count(1)}},
    }
    status = {
        "store": "profile.rank1.db",
        "steps": [],
        "notes": [],
        "regions": [
            {"name": "Net", "phases": [planned, {"state": "unplanned", "why": "the run was lossy"}],
             "plans_made": 0, "plans_recalled": 1, "runs_profiled": 2},
            {"name": "Other", "phases": [{"state": "profiling"}],
             "plans_made": 0, "plans_recalled": 0, "runs_profiled": 1},
        ],
        "left_alone": [{"name": "graph", "ops": 3, "why": "it has prim::fork"}],
    }
    notes = """
store: profile.rank1.db
Net: unplanned: the run was lossy
Other: profiling: its allocations are not steady yet
graph: left alone: it has prim::fork"""
    assert reporting.render(status) == """
graph  runs  peak before  peak after     bound     arena  hits  reused  misses  planned in
Net       7     5.00 MiB    4.00 MiB  4.00 MiB  2.93 KiB    90      12       3      0.12 s
plans made: 0, recalled from the store: 1, runs profiled: 3""".lstrip() + notes
    status["regions"][0]["phases"].remove(planned)
    assert reporting.render(status) == "nothing is planned yet" + notes
