# SPDX-License-Identifier: Apache-2.0
"""The `stowage` command: shows what a store holds, and verifies planned runs. Results go to stdout, notes to stderr.
Needs no torch but for the script that `verify` runs."""

import sys

import typer

from stowage.commands.budget import budget
from stowage.commands.common import note
from stowage.commands.export import export
from stowage.commands.plans import explain, plan, sql
from stowage.commands.runs import info, kernels, ops, peak, tensors
from stowage.commands.verify import verify
from stowage.solving import SolverError
from stowage.store import StoreError
from stowage.verifying import UnreadableScript

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, the same in a pipe
    epilog="Start with: stowage info profile.db",
)


@app.callback()
def stowage() -> None:
    """Shows what stowage measured and planned, from the store that a training run wrote; checks planned runs."""


for command, example in (
    (info, "stowage info profile.db"),
    (ops, "stowage ops profile.db --planned --limit 40"),
    (kernels, "stowage kernels profile.db --limit 10"),
    (tensors, "stowage tensors profile.db --limit 5"),
    (peak, "stowage peak profile.db --run 3"),
    (explain, "stowage explain profile.db"),
    (plan, "stowage plan profile.db --json"),
    (budget, "stowage budget profile.db --points 10"),
    (export, "stowage export profile.db --format memory-viz --planned -o planned.pickle"),
    (sql, "stowage sql profile.db 'SELECT kind, sum(duration_ns) FROM ops GROUP BY kind'"),
):
    app.command(epilog=f"Example: {example}")(command)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
            epilog="Example: stowage verify train.py --epochs 1")(verify)


def main() -> None:
    try:
        app(prog_name="stowage")
    except StoreError as error:
        note(str(error))
        sys.exit(1)
    except SolverError as error:
        note(str(error))
        sys.exit(error.exit_code)
    except UnreadableScript as error:
        note(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
