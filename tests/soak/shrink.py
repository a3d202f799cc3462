# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program smaller while it still fails, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from soak.program import INPUT, Loop, Program, Statement


def shrink(program: Program, fails: Callable[[Program], bool], limit_s: float) -> Program:
    """The smallest program that greedy removal finds in the time."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        before = program
        for make_candidates in (_fewer_statements, _plainer_loops, _smaller_loops, _fewer_outputs):
            program = _reduce(program, make_candidates, fails, end)
        if program == before:
            break
    return program


def _reduce(program: Program, make_candidates: Callable[[Program], Iterator[Program]], fails: Callable[[Program], bool],
            end: float) -> Program:
    """Takes each candidate that still fails and goes on from there, past as many as had been refused."""
    refused = 0
    while True:
        for number, candidate in enumerate(make_candidates(program)):
            if time.monotonic() > end:
                return program
            if number >= refused and fails(candidate):
                program, refused = candidate, number
                break
        else:
            return program


def _fewer_statements(program: Program) -> Iterator[Program]:
    """Without halves, quarters and so on of the statements, down to single ones, those in blocks too."""
    numbers = [statement.number for statement in _all(program.statements)]
    size = len(numbers)
    while size > 1:
        size = (size + 1) // 2
        for first in range(0, len(numbers), size):
            smaller = _without(program, set(numbers[first : first + size]))
            if smaller.statements:
                yield smaller
    for statement in _all(program.statements):
        if statement.otherwise:
            shorter = replace(statement, otherwise=())
            yield replace(program, statements=_swapped(program.statements, statement, (shorter,)))
        for body in (statement.body, statement.otherwise):
            if body:
                yield replace(program, statements=_swapped(program.statements, statement, _unwrapped(statement, body)))


def _unwrapped(block: Statement, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The block's body, once. The block's own value is then what its last statement is."""
    start = Statement(block.number, "value", "{0} * 1", block.operands)
    values = [statement.number for statement in body if statement.kind not in ("write", "throw")]
    if not values or block.kind != "branch":  # a loop's body may use the value that it is there to set
        return (start, *body)
    return (*body, replace(start, operands=(values[-1], INPUT)))


def _all(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in statements:
        yield statement
        yield from _all(statement.body)
        yield from _all(statement.otherwise)


def _swapped(statements: tuple[Statement, ...], old: Statement, new: tuple[Statement, ...]) -> tuple[Statement, ...]:
    made: list[Statement] = []
    for statement in statements:
        if statement is old:
            made.extend(new)
        else:
            made.append(replace(statement, body=_swapped(statement.body, old, new),
                                otherwise=_swapped(statement.otherwise, old, new)))
    return tuple(made)


def _without(program: Program, numbers: set[int]) -> Program:
    """Whoever used a dropped value uses its first operand."""
    dropped = {statement.number: statement for statement in _all(program.statements) if statement.number in numbers}

    def stand_in(value: int) -> int:
        while value in dropped:
            value = dropped[value].operands[0]
        return value

    def kept(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(replace(statement, operands=tuple(map(stand_in, statement.operands)), body=kept(statement.body),
                             otherwise=kept(statement.otherwise))
                     for statement in statements if statement.number not in numbers)

    return replace(program, statements=kept(program.statements), outputs=tuple(map(stand_in, program.outputs)))


def _plainer_loops(program: Program) -> Iterator[Program]:
    """With one more choice as plain as it gets, or with one item less of a choice of several."""
    for choice in fields(Loop):
        value = getattr(program.loop, choice.name)
        if choice.name == "steps" or value == choice.default:
            continue
        yield _with(program, **{choice.name: choice.default})
        if isinstance(value, tuple) and len(value) > 1:
            for item in range(len(value)):
                yield _with(program, **{choice.name: (*value[:item], *value[item + 1 :])})


def _smaller_loops(program: Program) -> Iterator[Program]:
    steps = program.loop.steps
    if program.mode == "scripted-step":
        yield replace(program, mode="scripted")
    yield from (_with(program, steps=fewer) for fewer in sorted({steps // 2, steps - 1} - {0, steps}))
    every = program.loop.rows
    for position, rows in enumerate(every):
        if rows > 2:
            yield _with(program, rows=(*every[:position], max(2, rows // 2), *every[position + 1 :]))
    if program.width > 16:
        yield replace(program, width=16)


def _with(program: Program, **choices: object) -> Program:
    return replace(program, loop=replace(program.loop, **choices))


def _fewer_outputs(program: Program) -> Iterator[Program]:
    outputs = program.outputs
    yield from (replace(program, outputs=(*outputs[:item], *outputs[item + 1 :])) for item in range(1, len(outputs)))
