# SPDX-License-Identifier: Apache-2.0
"""The command that writes what a store holds as a page to look at."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stowage.commands.common import AsJson, RunId, StorePath, note, note_run, print_json, suggest, working
from stowage.page.report import collect, render
from stowage.store import Store
from stowage.text import printable, size


def report(
    store: StorePath,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE",
                                                help="The page; else STORE with '.html' for its ending.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over FILE.")] = False,
    run_id: RunId = None, as_json: AsJson = False,
) -> None:
    """Writes a page to look at: memory over the step, the layout, ops and tensors.

    One HTML file that loads nothing, for any browser. --json prints what is in it instead.
    """
    path = output or Path(store).with_suffix(".html")
    if not as_json and path.exists():
        if Path(store).exists() and path.samefile(store):
            refuse(path, "it is the store; choose another with -o")
        if not force:
            refuse(path, "it exists; choose another with -o, or give --force")
    with Store(store) as opened, working("reading the store"):
        run = opened.run(run_id)
        data = collect(opened, run)
    if as_json:
        return print_json(data)

    page = render(data).encode()
    try:
        path.write_bytes(page)
    except OSError as error:
        refuse(path, f"{(error.strerror or 'it failed').lower()}; choose another with -o")
    note_run(run)
    print(f"wrote {printable(path)} ({size(len(page))}); open it in a browser")
    suggest("explain", store, run["run_id"])


def refuse(path: Path, why: str) -> None:
    note(f"cannot write '{path}': {why}")
    sys.exit(2)
