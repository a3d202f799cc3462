# SPDX-License-Identifier: Apache-2.0
"""The commands, as the command line itself lists them: what a test takes from here covers a new command, too."""

from typing import Any

import typer

from stowage import cli

#: What to give to arguments and to options without which a command refuses to run, by metavar.
VALUES = {"QUERY": "SELECT count(*) AS ops FROM ops", "OP": "0"}
STORES = ("STORE", "A", "B")
#: Those that write files: which, and over an earlier one.
MORE = {"export": ["--format", "csv", "--force"], "report": ["--force"]}


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(cli.app).commands)


def arguments_of(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument"]


def reads_stores(command: Any) -> bool:
    return any(each.metavar in STORES for each in arguments_of(command))


def has_option(name: str, option: str) -> bool:
    return any(option in each.opts for each in commands()[name].params)


def line(name: str, path: str, *more: str) -> list[str]:
    """A command line that runs the command on a file."""
    words = [name]
    for number, each in enumerate(commands()[name].params):
        value = VALUES.get(each.metavar, "made.out")
        if each.param_type_name == "argument":
            words.append(path if number == 0 or each.metavar in STORES else value)
        elif each.required:
            words += [each.opts[0], value]
    return [*words, *MORE.get(name, ()), *more]


COMMANDS = list(commands())
#: Those that read files of another kind; `verify` runs a script, with torch.
ON_FILES = [name for name, command in commands().items() if not reads_stores(command) and name != "verify"]
ON_STORES = [name for name, command in commands().items() if reads_stores(command)]
