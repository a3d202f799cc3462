# SPDX-License-Identifier: Apache-2.0
"""The tutorial runs from top to bottom, and what it shows is what it showed when it was committed."""

import importlib.util
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "scripts" / "tutorial.ipynb"
CELL_TIMEOUT_S = 600  # the whole takes 20 s of a processor that has nothing else to do


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def pictures(cell):
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


@pytest.fixture(scope="module")
def committed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


@pytest.fixture(scope="module")
def executed(committed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorial")
    notebook = nbformat.from_dict(committed)
    for cell in code_cells(notebook):
        cell.outputs = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR", "TMPDIR"):
            patch.setenv(name, str(folder))
        patch.delenv("MPLBACKEND", raising=False)
        if importlib.util.find_spec("stowage") is None:  # not installed: the package's source will do
            patch.setenv("PYTHONPATH", str(ROOT / "scripts"), prepend=os.pathsep)
        client = nbclient.NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", coalesce_streams=True)
        return client.execute(cwd=str(folder))  # raises at the first cell that fails


@pytest.mark.slow
def test_every_cell_runs(executed):
    assert all(cell.execution_count == number for number, cell in enumerate(code_cells(executed), 1))


@pytest.mark.slow
def test_cells_print_what_was_committed(committed, executed):
    exact = [(old, new) for old, new in zip(code_cells(committed), code_cells(executed), strict=True)
             if "exact" in old.metadata.get("tags", [])]
    assert len(exact) >= 8
    for old, new in exact:
        assert printed(new) == printed(old) != ""


@pytest.mark.slow
def test_cells_draw_what_they_drew(committed, executed):
    assert [pictures(cell) for cell in code_cells(executed)] == [pictures(cell) for cell in code_cells(committed)]


def test_it_is_committed_with_small_outputs(committed):
    assert NOTEBOOK.stat().st_size < 300 << 10
    assert all(cell.execution_count is not None for cell in code_cells(committed))
    assert sum(pictures(cell) for cell in code_cells(committed)) == 5


def test_it_is_committed_without_errors_and_warnings(committed):
    outputs = [output for cell in code_cells(committed) for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "display_data"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
