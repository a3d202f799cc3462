# SPDX-License-Identifier: Apache-2.0
"""Writes a program as Python text: a module and the loop that trains it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import indent

from soak.program import EMBEDDINGS, INPUT, THROWS, Program, Statement

LAYERS = {"linear": "nn.Linear({w}, {w})", "conv": "nn.Conv2d(4, 4, 3, padding=1)", "batch_norm": "nn.BatchNorm1d({w})",
          "layer_norm": "nn.LayerNorm({w})", "embed": f"nn.Embedding({EMBEDDINGS}, {{w}})"}
IMPORTS = """import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
"""


def name(value: int) -> str:
    return "x" if value == INPUT else f"v{value}"


def write(program: Program) -> str:
    """The whole text. `train(stowage, see)` of it runs the program: `stowage.step` and `stowage.mark_step` are called
    as the mode wants, and all that can be observed goes to `see`."""
    forward = "\n".join(_block(program, program.statements))
    layers = "".join(f"        self.{kind}{number} = {text.format(w=program.width)}\n" for kind, text in LAYERS.items()
                     for number in range(2) if f"self.{kind}{number}" in forward)
    outputs = ", ".join(map(name, program.outputs))
    return f'''# seed {program.seed}, mode {program.mode}
{IMPORTS}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
{layers}
    def forward(self, x, tokens, flag: int):
{indent(forward, "        ")}
        return {outputs}{"," if len(program.outputs) == 1 else ""}


def train(stowage, see):
{indent(chr(10).join(_training(program)), "    ")}
'''


def _block(program: Program, statements: Iterable[Statement]) -> Iterator[str]:
    for statement in statements:
        target = name(statement.number)
        side = round((program.width / 4) ** 0.5)
        text = statement.text.format(*map(name, statement.operands), w=program.width, s=side)
        if statement.kind == "value":
            yield f"{target} = {text}"
        elif statement.kind == "write":
            yield text
        elif statement.kind == "throw":
            yield from (f"if flag == {THROWS}:", '    raise RuntimeError("thrown by the forward")')
        else:
            yield f"{target} = {name(statement.operands[0])}"
            if statement.kind == "branch":
                yield f"if {text}:"
            elif statement.kind == "for":
                yield f"for _ in range({text}):"
            else:
                turns = f"n{statement.number}"
                yield from (f"{turns} = 0", f"while {turns} < {text}:", f"    {turns} += 1")
            yield from _body(program, target, statement.body)
            if statement.otherwise:
                yield "else:"
                yield from _body(program, target, statement.otherwise)


def _body(program: Program, target: str, statements: tuple[Statement, ...]) -> Iterator[str]:
    yield from (f"    {line}" for line in _block(program, statements))
    values = [statement for statement in statements if statement.kind not in ("write", "throw")]
    yield f"    {target} = {name(values[-1].number)}" if values else f"    {target} = {target} * 1"


def _in_turn(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values}[step % {len(values)}]"


def _every(steps: int, last: bool = False) -> str:
    """The start of a line that is for every so many steps."""
    return "" if steps == 1 else f"if step % {steps} == {steps - 1 if last else 0}: "


def _training(program: Program) -> Iterator[str]:
    loop, width = program.loop, program.width
    to_device = f', device="{program.device}"' if program.device != "cpu" else ""
    make = f'Net().to("{program.device}")' if to_device else "Net()"
    make = f"torch.jit.script({make})" if program.mode.startswith("scripted") else make
    yield f"torch.manual_seed({program.seed})"
    yield f"net = {make}"
    if loop.second:
        yield f"second = {make}"
    if loop.thread:
        yield "class Side(Net): pass  # TorchScript learns of a class from whoever calls it first"
        yield f"side = {make.replace('Net', 'Side')}.eval()"
        yield from _side_thread(width, to_device)
    yield f"parameters = [*net.parameters(){', *second.parameters()' if loop.second else ''}]"
    yield f"optimizer = torch.optim.{loop.optimizer}"
    yield "output = loss = None"
    yield "activations, kept, errors = [], [], []"
    yield f"for step in range({loop.steps}):"
    yield f"    rows, flag = {_in_turn(loop.rows)}, {_in_turn(loop.flags)}"
    yield f"    x = torch.randn(rows, {width}{to_device}{', requires_grad=True' if loop.input_grad else ''})"
    yield f"    y = torch.randn(rows, {width}{to_device})"
    yield f"    tokens = torch.randint({EMBEDDINGS}, (rows,){to_device})"
    for step, where in loop.throws:
        if where == "forward":
            yield f"    if step == {step}: flag = {THROWS}"
    if loop.thread:
        yield "    thread = threading.Thread(target=infer, args=(step,))"
        yield "    thread.start()"
    yield "    try:"
    if program.mode == "marked":
        yield "        stowage.mark_step()"
    if program.mode.endswith("-step"):
        yield "        with stowage.step():"
        yield from (f"            {line}" for line in _step(program))
    else:
        yield from (f"        {line}" for line in _step(program))
    yield "    except Exception as error:"
    yield '        see(f"error of step {step}", error)'
    if loop.keep_errors:
        yield "        errors.append(error)"
    yield from (f"    {line}" for line in _after(program))
    yield 'see("kept tensors", kept)'


def _side_thread(width: int, to_device: str) -> Iterator[str]:
    yield "def infer(step):"
    yield f"    x = torch.ones(20, {width}{to_device}) * (step + 1)"
    yield f"    tokens = torch.full((20,), step % {EMBEDDINGS}{to_device})"
    yield "    with torch.no_grad():"
    yield "        for _ in range(4):"
    yield "            seen_aside.append(side(x, tokens, 1))"
    yield "seen_aside = []"


def _step(program: Program) -> Iterator[str]:
    loop = program.loop
    throw = {where: step for step, where in loop.throws}
    zero = f"optimizer.{loop.zero}"
    if loop.zero_first:
        yield _every(loop.accumulate) + zero
    call = "net(x, tokens, flag)"
    if loop.checkpoint:
        call = f"checkpoint(net, x, tokens, flag, use_reentrant={loop.checkpoint})"
    yield f"output, *activations = {call}"
    if loop.second:
        yield "output = second(output, tokens, flag)[0]"
    yield from loop.hooks
    if "hook" in throw:
        yield f"if step == {throw['hook']}: output.register_hook(lambda slope: 1 // 0)"
    yield f"loss = F.{loop.loss}"
    if "loss" in throw:
        yield f'if step == {throw["loss"]}: raise ValueError("thrown after the forward")'
    if loop.penalty_every:
        slope = "torch.autograd.grad(loss, x, create_graph=True)[0]"
        yield f"{_every(loop.penalty_every)}loss = loss + {slope}.pow(2).mean()"
    if loop.retain_every:
        yield _every(loop.retain_every) + "loss.backward(retain_graph=True)"
    yield "loss.backward()"
    if "step" in throw:
        yield f'if step == {throw["step"]}: raise ValueError("thrown after the backward")'
    yield _every(loop.accumulate, last=True) + "optimizer.step()"
    if not loop.zero_first:
        yield 'see(f"gradients of step {step}", [parameter.grad for parameter in parameters])'
        yield _every(loop.accumulate, last=True) + zero
    yield from (f"{_every(loop.keep_every)}kept.append({what})" for what in loop.keep)


def _after(program: Program) -> Iterator[str]:
    loop = program.loop
    if loop.thread:
        yield "thread.join()"
        yield 'see(f"thread of step {step}", seen_aside)'
        yield "seen_aside.clear()"
    yield 'see(f"outputs of step {step}", [output, activations, loss, x, x.grad])'
    yield 'see(f"parameters of step {step}", [parameters, [parameter.grad for parameter in parameters]])'
    yield 'see(f"state of step {step}", [optimizer.state_dict(), dict(net.named_buffers()), torch.get_rng_state()])'
    if loop.write_kept:
        yield "if kept and kept[0] is not None:"
        yield "    kept[0].detach().reshape(-1)[:50].mul_(0.5)"
    if loop.forget:
        yield "output = loss = None"
        yield "activations = []"
    if loop.evaluate_every:
        yield f"if step % {loop.evaluate_every} == 0:"
        if loop.evaluate_rows:
            yield f"    x, tokens = (each[:1].repeat_interleave({loop.evaluate_rows}, 0) for each in (x, tokens))"
        yield "    net.eval()"
        yield "    with torch.no_grad(): see(f\"evaluation of step {step}\", net(x, tokens, 1))"
        yield "    net.train()"
    if loop.hold:
        yield f"see(f\"let go in step {{step}}\", kept[:-{loop.hold}])"
        yield f"kept = kept[-{loop.hold}:]"
