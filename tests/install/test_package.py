# SPDX-License-Identifier: Apache-2.0
"""The Python package, as scripts/setup installed it from its wheel."""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **environment},
                          capture_output=True, text=True)


def test_the_wheel_holds_the_package_the_plugin_and_both_commands_and_nothing_else():
    files = {str(file) for file in distribution("stowage").files or []}
    modules = {path.relative_to(ROOT / "scripts").as_posix() for path in (ROOT / "scripts/stowage").rglob("*.py")}
    page = {path.relative_to(ROOT / "scripts").as_posix() for ending in ("html", "css", "js")
            for path in (ROOT / "scripts/stowage/page").glob(f"*.{ending}")}
    assert {"stowage/cli.py"} <= modules and {"stowage/page/report.html"} <= page
    assert modules | page | {"stowage/build_info.py", "stowage/libstowage.so", "../../../bin/stowage",
                      "../../../bin/stowage-solve"} <= files
    for file in files:
        in_package = file.startswith("stowage/") and file.endswith((".py", ".pyc", ".so", "py.typed"))
        assert in_package or file in page or ".dist-info/" in file or file.startswith("../../../bin/stowage"), file


def test_the_commands_run_anywhere(tmp_path):
    for command in ("stowage", "stowage-solve"):
        result = run(BIN / command, "--help", cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        assert "Usage:" in result.stdout


def test_the_command_line_runs_without_torch(tmp_path):
    # A torch that cannot be imported stands for one that is not there.
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    result = run(BIN / "stowage", "--help", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")


def test_the_plugin_loads_with_torch_alone(tmp_path):
    [library] = [file.locate() for file in distribution("stowage").files or [] if file.name == "libstowage.so"]
    program = f"import torch; torch.ops.load_library({str(library)!r}); print(torch.ops.stowage.status())"
    result = run(sys.executable, "-c", program, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("{")


def test_the_build_knows_what_it_was_built_for():
    import torch
    from stowage import build_info

    assert build_info.TORCH_VERSION.split("+")[0] == torch.__version__.split("+")[0]
    assert build_info.STOWAGE_VERSION == distribution("stowage").version
