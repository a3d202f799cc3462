# SPDX-License-Identifier: Apache-2.0
"""Runs a user's script with the option `verify` on."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class UnreadableScript(Exception):
    """The script's file cannot be read."""


def run_script(script: str, arguments: list[str]) -> int:
    """Runs the script as `python script arguments...` does, in this process. Returns its exit code; what it raises is
    printed, as Python prints it."""
    try:
        with open(script, "rb"):
            pass
    except OSError as error:
        raise UnreadableScript(f"cannot read script '{script}': {error.strerror}") from error
    os.environ["STOWAGE_VERIFY"] = "1"
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception as error:
        traceback.print_exception(error.with_traceback(_within(script, error.__traceback__)))
        return 1
    return 0


def plugin_status() -> dict[str, Any] | None:
    """The plugin's status, however the script loaded it; None if it did not."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch.ops.stowage, "status"):
        return None
    return json.loads(torch.ops.stowage.status())


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Also what is printed by code that is not Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _within(script: str, frames: Any) -> Any:
    """The script's own frames: not those that started it."""
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    return frames
