# SPDX-License-Identifier: Apache-2.0
"""What a person at a terminal gets: colours, the next command, help and completion."""

import os
import pty
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from cli.every_command import COMMANDS, ON_STORES, line
from cli.sample_store import ON_CUDA, ROOT, Stowage, change_store

from stowage import cli

ESCAPE = "\x1b["


def on_terminal(folder: Path, *arguments: str, **environment: str) -> str:
    """What `stowage ARGUMENT...` writes to a terminal of 80 columns."""
    leader, follower = pty.openpty()
    settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
    process = subprocess.Popen([sys.executable, "-m", "stowage.cli", *arguments], cwd=folder,
                               env={**settings, "PYTHONPATH": str(ROOT / "scripts"), "TERM": "xterm", "COLUMNS": "80",
                                    **environment},
                               stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    text = b""
    try:
        while chunk := os.read(leader, 65536):
            text += chunk
    except OSError:
        pass  # the terminal's other end is closed: all is read
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return text.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours(store: Path) -> None:
    text = on_terminal(store.parent, "peak", "run.db")
    bold = re.findall(r"\x1b\[1m(.*?)\x1b\[0m", text)
    assert bold[0] == "before planning: 16.00 MiB in step 2: op 2 aten::mean 'c' at net.py:9"
    assert text.count(ESCAPE) == 2 * len(bold)


def test_the_line_of_the_peak_stands_out(store: Path) -> None:
    bold = re.findall(r"\x1b\[1m(.*?)\x1b\[0m", on_terminal(store.parent, "ops", "run.db"))
    assert [row.split()[:2] for row in bold] == [["step", "op"], ["2", "2"]]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused(store: Path, environment: dict[str, str]) -> None:
    for command in ("peak", "ops", "timeline"):
        assert ESCAPE not in on_terminal(store.parent, command, "run.db", **environment)


def test_colours_say_nothing_that_text_does_not(stowage: Stowage, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("info", "peak", "timeline"):
        text = re.sub(r"\x1b\[\d+m", "", on_terminal(store.parent, command, "run.db"))
        shown = {row.rstrip(".") for row in text.splitlines()}
        assert all(row in shown or row[:77] in shown for row in stowage(command, "run.db").stdout.splitlines())


def test_a_person_is_told_the_next_command(store: Path) -> None:
    """On a terminal only: what pipes get, other tests assert."""
    text = on_terminal(store.parent, "plan", "run.db", "--run", "2")
    assert text.splitlines()[-1] == "next: stowage ops run.db --run 2 --planned"


@pytest.mark.parametrize("name", [name for name in ON_STORES if name != "export"])  # after which comes another tool
def test_the_next_command_works(stowage: Stowage, store: Path, name: str) -> None:
    change_store(store, ON_CUDA + "UPDATE ops SET repeatable = 1")
    if stowage(*line(name, "run.db")).returncode != 0:
        pytest.skip("the sample store is not for this command")
    suggested = re.search(r"^next: stowage (.*)$", on_terminal(store.parent, *line(name, "run.db")), re.MULTILINE)
    assert suggested and stowage(*suggested[1].split()).returncode == 0


# --- help --------------------------------------------------------------------------------------------------------

def test_help_lists_commands_by_subject(stowage: Stowage) -> None:
    result = stowage("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: stowage ")
    assert result.stdout.endswith("\n  Start with: stowage info profile.db\n")
    assert result.stdout.isascii()
    subjects = re.findall(r"^(\w[^\n]*):\n((?:  \w[^\n]*\n)+)", result.stdout, re.MULTILINE)
    assert [subject for subject, _ in subjects][:3] == ["Where memory goes", "What was measured", "What is planned"]
    assert sorted(row.split()[0] for _, rows in subjects for row in rows.splitlines()) == sorted(COMMANDS)


def test_without_arguments_it_shows_its_help(stowage: Stowage) -> None:
    result = stowage()
    assert "Where memory goes:" in result.stdout + result.stderr


def test_version(stowage: Stowage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "version", lambda name: {"stowage": "1.2.3"}[name])
    result = stowage("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, "stowage 1.2.3\n", "")


def test_version_of_a_source_tree(stowage: Stowage, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", version)
    result = stowage("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, "stowage, not installed: it runs from its source\n", "")


# --- completion --------------------------------------------------------------------------------------------------

def complete(folder: Path, words: str) -> list[str]:
    """What bash offers after these words, but for the files that it adds."""
    count = len(words.split(" ")) - 1
    result = subprocess.run([sys.executable, "-c", "from stowage import cli; cli.main()"], cwd=folder, capture_output=True,
                            text=True, timeout=60, env={
                                **os.environ, "PYTHONPATH": str(ROOT / "scripts"), "HOME": str(folder),
                                "_STOWAGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)})
    assert result.stderr == ""
    return result.stdout.split()


def test_completion(tmp_path: Path) -> None:
    assert complete(tmp_path, "stowage ti") == ["timeline"]
    assert {"--at", "--csv", "--json", "--scope"} <= set(complete(tmp_path, "stowage tensors --"))
    assert sorted(complete(tmp_path, "stowage ")) == sorted(COMMANDS)
    assert list(tmp_path.iterdir()) == []


def test_the_completion_script_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-m", "stowage.cli", "--show-completion", "bash"], cwd=tmp_path,
                            capture_output=True, text=True, timeout=60,
                            env={**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "HOME": str(tmp_path), "SHELL": "/bin/bash",
                                 "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "complete -o default -F _stowage_completion stowage" in result.stdout  # -o default: files, such as stores
    assert list(tmp_path.iterdir()) == []
