# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.sample_store import ROOT, Stowage, make_store

if importlib.util.find_spec("stowage") is None:  # not installed: the package's source will do
    sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of sample_store.py, as "run.db" in the test's folder."""
    path = tmp_path / "run.db"
    make_store(path)
    return path


@pytest.fixture
def stowage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Stowage:
    """Runs `stowage ARGUMENT...` in the test's folder, in this process: that is quick."""
    from stowage import cli

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["stowage", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, output.out, output.err)

    return run


@pytest.fixture
def stowage_process(tmp_path: Path) -> Stowage:
    """The same in a process of its own, in which importing torch raises."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")
    search = os.pathsep.join((str(tmp_path), str(ROOT / "scripts")))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "stowage.cli", *arguments], cwd=tmp_path, capture_output=True,
                              text=True, env={**os.environ, "PYTHONPATH": search}, timeout=60)

    return run
