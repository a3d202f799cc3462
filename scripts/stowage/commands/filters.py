# SPDX-License-Identifier: Apache-2.0
"""The options that choose ops and tensors, by place in the order, module and size."""

from typing import Annotated

import typer

from stowage.curve import Choice
from stowage.text import parse_size


def _to_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


FromStep = Annotated[int, typer.Option("--from", min=0, metavar="STEP",
                                       help="From here on: a place in the order shown; in program order an op's number.")]
ToStep = Annotated[int | None, typer.Option("--to", min=0, metavar="STEP", help="Up to here, this one included.")]
Scope = Annotated[str, typer.Option("--scope", metavar="MODULE", help="Only of this module, such as layer1, and its parts.")]
MinSize = Annotated[int, typer.Option("--min-size", parser=_to_bytes, metavar="SIZE", help="Only of this size or more: 1MiB.")]


def choose(first_step: int, last_step: int | None, scope: str, min_bytes: int) -> Choice:
    if last_step is not None and last_step < first_step:
        raise typer.BadParameter(f"--from {first_step} is after --to {last_step}")
    return Choice(first_step, last_step, scope, min_bytes)
