# SPDX-License-Identifier: Apache-2.0
"""The `stowage` command: shows what a store holds, and verifies planned runs. Results go to stdout, notes to stderr.
Needs no torch but for the script that `verify` runs."""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stowage.commands.budget import budget
from stowage.commands.common import note
from stowage.commands.diff import diff
from stowage.commands.explain import explain
from stowage.commands.export import export
from stowage.commands.graphs import graph, order
from stowage.commands.memory import peak, tensors
from stowage.commands.plans import plan, sql
from stowage.commands.report import report
from stowage.commands.runs import info, kernels, ops
from stowage.commands.snapshot import snapshot
from stowage.commands.timeline import timeline
from stowage.commands.verify import verify
from stowage.snapshots.pickles import SnapshotError
from stowage.solving import SolverError
from stowage.store import StoreError
from stowage.verifying import UnreadableScript


class Groups(TyperGroup):
    """Lists commands by subject, in the order in which they were added."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        by_subject: dict[str, list[tuple[str, str]]] = {}
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        room = formatter.width - 6 - max(map(len, commands))
        for name, command in commands.items():
            by_subject.setdefault(command.rich_help_panel, []).append((name, command.get_short_help_str(room)))
        for subject, lines in by_subject.items():
            with formatter.section(subject):
                formatter.write_dl(lines)


app = typer.Typer(
    cls=Groups,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, the same in a pipe
    epilog="Start with: stowage info profile.db",
)


def _show_version(given: bool) -> None:
    if given:
        try:
            print(f"stowage {version('stowage')}")
        except PackageNotFoundError:
            print("stowage, not installed: it runs from its source")
        raise typer.Exit


@app.callback()
def stowage(
    _: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version.")] = False,
) -> None:
    """Shows what stowage measured and planned, from the store that a training run wrote; checks planned runs.

    A STORE is the file named in stowage.enable(store=...). Each command has --help with an example, and prints
    --json and, where it prints a table, --csv. Tab completion: stowage --show-completion prints a script for your
    shell, --install-completion also adds it to your shell's configuration.
    """


for subject, commands in (
    ("Where memory goes", (
        (peak, "stowage peak profile.db --run 3"),
        (explain, "stowage explain profile.db"),
        (report, "stowage report profile.db -o report.html"),
        (timeline, "stowage timeline profile.db --from 100 --to 200"),
        (tensors, "stowage tensors profile.db --at 120 --min-size 1MiB"),
    )),
    ("What was measured", (
        (info, "stowage info profile.db"),
        (ops, "stowage ops profile.db --planned --limit 40"),
        (kernels, "stowage kernels profile.db --limit 10"),
        (sql, "stowage sql profile.db 'SELECT kind, sum(duration_ns) FROM ops GROUP BY kind'"),
    )),
    ("What is planned", (
        (plan, "stowage plan profile.db --slots --csv"),
        (order, "stowage order profile.db --scope layer1"),
        (graph, "stowage graph profile.db --deps 120"),
        (budget, "stowage budget profile.db --points 10"),
    )),
    ("Runs compared, and other tools", (
        (diff, "stowage diff before.db after.db:2"),
        (export, "stowage export profile.db --format memory-viz --planned -o planned.pickle"),
        (snapshot, "stowage snapshot snapshot.pickle --depth 3"),
    )),
):
    for command, example in commands:
        app.command(epilog=f"Example: {example}", rich_help_panel=subject)(command)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
            epilog="Example: stowage verify train.py --epochs 1", rich_help_panel="What is planned")(verify)


def main() -> None:
    try:
        app(prog_name="stowage")
    except StoreError as error:
        note(str(error))
        sys.exit(1)
    except SolverError as error:
        note(str(error))
        sys.exit(error.exit_code)
    except (SnapshotError, UnreadableScript) as error:
        note(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
