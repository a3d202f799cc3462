# SPDX-License-Identifier: Apache-2.0
"""The command that checks planned runs against unplanned ones."""

import sys
from typing import Annotated

import typer

from stowage.commands.common import note, print_json
from stowage.text import printable
from stowage.verdict import all_equal, verdicts, verified_regions, why_nothing_ran
from stowage.verifying import plugin_status, run_script, stdout_to_stderr


def verify(script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file that trains with stowage.")],
           arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="What it takes.")] = None,
           as_json: Annotated[bool, typer.Option("--json", help="Print JSON; what the script prints goes to stderr.")]
           = False) -> None:
    """Runs a script and compares planned runs with unplanned ones.

    Every planned run is done twice, first unplanned, and the results of each op are compared byte by byte; so what the
    graph prints is printed twice. Names the first op whose result differs; the script goes on with the unplanned
    results. Exits 0 if all were equal, 1 if not or if nothing was planned, or as the script does when that fails.
    """
    if as_json:
        with stdout_to_stderr():
            script_exit = run_script(script, arguments or [])
    else:
        script_exit = run_script(script, arguments or [])
    status = plugin_status()
    lines = verdicts(status) if status else []
    reasons = [] if lines else why_nothing_ran(status) if status else ["the script did not load stowage"]
    if as_json:
        print_json({"script": script, "script_exit": script_exit, "all_equal": bool(lines) and all_equal(status),
                    "regions": verified_regions(status) if lines else [], "why_nothing_verified": reasons})
    else:
        for line in lines:
            print(printable(line))
    for reason in reasons:
        note(f"nothing was verified: {reason}")
    if script_exit:
        note(f"'{script}' ended with exit code {script_exit}; the rest of it was not verified")
    sys.exit(script_exit or (0 if lines and all_equal(status) else 1))
