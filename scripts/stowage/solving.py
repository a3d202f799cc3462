# SPDX-License-Identifier: Apache-2.0
"""Runs `stowage-solve`, the solver's command line, which is installed beside `stowage`. Needs no torch."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = "stowage-solve"
#: A run that takes longer shows that something is going on.
PATIENCE_S = 2


class SolverError(Exception):
    """The solver is not there or cannot plan. One line: what, why, and how to mend it; `exit_code` as the solver's."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def solver() -> Path:
    """The program: STOWAGE_SOLVE, else the one beside this command, beside Python, or in PATH."""
    named = os.environ.get("STOWAGE_SOLVE")
    found = named or shutil.which(NAME) or ""
    beside = [] if named else [Path(sys.argv[0]).with_name(NAME), Path(sysconfig.get_path("scripts")) / NAME]
    for path in (*beside, Path(found)):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise SolverError(f"cannot plan: '{named or NAME}' not found; install stowage again, or set STOWAGE_SOLVE to the "
                      "program")


def plan_budgets(step: dict[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """What `stowage-solve budget STEP ARGUMENT...` answers for a step in the format `stowage-step/1`."""
    return ask("budget", step, arguments)


def ask(command: str, step: dict[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """What `stowage-solve COMMAND STEP ARGUMENT...` answers for a step in the format `stowage-step/1`."""
    return _ask(command, "step.json", json.dumps(step), arguments, step["name"])


def plan_layout(rows: Sequence[tuple[str, int, int, int]], name: str, deadline_ms: int) -> dict[str, Any]:
    """What `stowage-solve layout` answers for buffers: id, lower, upper (exclusive) and size in bytes."""
    text = "".join(f"{','.join(map(str, row))}\n" for row in (("id", "lower", "upper", "size"), *rows))
    return _ask("layout", "buffers.csv", text, ("--deadline-ms", str(deadline_ms)), name)


def _ask(command: str, file_name: str, text: str, arguments: Sequence[str], name: str) -> dict[str, Any]:
    program = solver()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / file_name
        file.write_text(text)
        output, errors, exit_code = _run([str(program), command, str(file), *arguments, "--json"])
    if exit_code != 0:
        lines = errors.strip().splitlines() or [f"'{program}' ended with exit code {exit_code}"]
        raise SolverError(f"cannot plan '{name}': {lines[-1].removeprefix(f'{NAME}: ')}", 2 if exit_code == 2 else 1)
    try:
        return json.loads(output)
    except json.JSONDecodeError as error:
        raise SolverError(f"cannot plan '{name}': '{program}' did not answer in JSON; use the one of this "
                          "stowage") from error


def _run(command: list[str]) -> tuple[str, str, int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            from rich.console import Console  # only here: the other commands start sooner without it

            console = Console(stderr=True)
            if console.is_terminal:
                with console.status("planning"):
                    output, errors = process.communicate()
            else:
                output, errors = process.communicate()
    return output, errors, process.returncode
