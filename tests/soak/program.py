# SPDX-License-Identifier: Apache-2.0
"""Small training programs from a seeded generator: data that `source.py` writes as text and `shrink.py` shrinks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MODES = ("scripted", "eager-step", "marked", "scripted-step")
#: The module's input in place of a statement's number.
INPUT = -1
#: What `flag` is where the forward is to throw.
THROWS = -1
EMBEDDINGS = 10
#: The step after which dry CUDA watches the rest.
WATCHED_FROM = 10


@dataclass(frozen=True)
class Statement:
    """`v{number} = text`, of rows x width floats as all values are, or a block that sets v{number}. `text` has {0} and
    {1} for `operands` and {w} and {s} for the width and the side of its four square channels."""

    number: int
    kind: str  # value, write, throw, branch, for, while
    text: str  # of a block: its condition or how often it runs
    operands: tuple[int, ...]
    body: tuple[Statement, ...] = ()
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Loop:
    """What the training loop does; the defaults are the plainest. `*_every` is a number of steps, 0 for never."""

    rows: tuple[int, ...] = (8,)  # of the batches, in turn
    flags: tuple[int, ...] = (1,)  # in turn
    steps: int = 8
    loss: str = "mse_loss(output, y)"
    optimizer: str = "SGD(parameters, lr=0.01)"
    accumulate: int = 1
    zero: str = "zero_grad()"
    zero_first: bool = False
    input_grad: bool = False
    keep: tuple[str, ...] = ()
    keep_every: int = 1
    hold: int = 0  # how many are kept; 0 for all
    write_kept: bool = False
    keep_errors: bool = False
    forget: bool = False
    hooks: tuple[str, ...] = ()
    retain_every: int = 0
    penalty_every: int = 0
    checkpoint: str = ""  # the value of use_reentrant
    throws: tuple[tuple[int, str], ...] = ()  # step and where
    evaluate_every: int = 0
    evaluate_rows: int = 0  # 0 for the batch's
    second: bool = False
    thread: bool = False


@dataclass(frozen=True)
class Program:
    seed: int
    mode: str
    device: str
    width: int
    statements: tuple[Statement, ...]
    outputs: tuple[int, ...]
    loop: Loop = field(default_factory=Loop)


#: All keep values small, since one NaN looks like another. Autograd saves the result of none of them.
POINTWISE = ("torch.sin({0})", "torch.where({0} > 0, {0}, {1})", "torch.clamp({0} * {0}, -1.0, 2.0)",
             "({0} + {1}) * 0.5", "torch.maximum({0}, {1} * 0.5)", "torch.lerp({0}, {1}, 0.25)",
             "torch.addcmul({0}, {1}, {1}, value=0.1).cos()",
             "({0} / ({1}.abs() + 1)).neg()", "{0} * {1}.sum(0).tanh()", "torch.minimum({0}, {1}[:, :1])",
             "({0}.double() * 0.3).sin().float()", "torch.relu({0}) - 0.5", "torch.sigmoid({0}) * {1}",
             "F.gelu({0}) + {1} * 0.1", "F.silu({0} * {1})", "torch.cat([{0}, {1}], 1)[:, {w}:] * 0.5")
#: Autograd saves what these return.
SAVED = ("torch.tanh({0} + {1})", "torch.exp(-torch.abs({0}))", "torch.softmax({0}, 1)", "torch.sigmoid({0})",
         "torch.sqrt(torch.abs({0}) + 0.1)", "torch.relu({0})")
OTHERS = ("torch.mm(torch.softmax(torch.mm({0}, {1}.t()), 1), {0})", "torch.cumsum({0}, 0).sin()",
          "torch.cat([{0}, {1}])[{0}.shape[0]:].clone()", "torch.mm(torch.mm({0}, {1}.t()).tanh(), {1}).sin()",
          "{0}.repeat(1, 4).sin().view(-1, 4, {w}).mean(1)", "({0} - {0}.mean()) / ({0}.std() + 1)", "{0}.flip(1)")
LAYERS = ("self.linear0({0})", "torch.tanh(self.linear1({0}))", "self.linear0(self.linear1({0}).relu())",
          "self.conv0({0}.reshape(-1, 4, {s}, {s})).reshape(-1, {w})", "self.batch_norm0({0})", "self.layer_norm0({0})",
          "{0} + self.embed0(tokens)", "F.linear({0}, self.linear0.weight)")
VIEWS = ("{0}.t().t()", "{0}.reshape(-1).view(-1, {w})", "{0}[:1].expand({1}.shape[0], {w})", "{0}.contiguous()",
         "{0}.detach()", "torch.cat(torch.chunk({0}, 2))", "{0}.t().contiguous().t()",
         "{0}.view(-1, 4, {s}, {s}).flatten(1)")
DRAWS = ("F.dropout({0}, 0.3)", "torch.rand_like({0})", "torch.bernoulli(torch.sigmoid({0})) * {0}",
         "{0} + torch.randn({0}.shape[0], {w}, device={0}.device) * 0.1")
WRITES = ("{0}.add_({1})", "{0}.mul_(0.5)", "{0}[1:3].copy_({1}[1:3])", "{0}.reshape(-1)[:100].neg_()",
          "{0}.t().add_({1}.t() * 0.1)", "{0}.clamp_(-1, 1)", "F.relu_({0})", "{0}.mul_({1}.detach())")
CONDITIONS = ("flag > 1", "flag % 2 == 0", "bool({0}.detach().sum() > 0)",
              "bool({0}.detach()[0, 0] > {1}.detach()[0, 0])")
REPEATS = ("2", "3", "flag % 3 + 1", "flag")

LOSSES = ("mse_loss(output, y)", "cross_entropy(output, tokens)", "smooth_l1_loss(output, y)")
OPTIMIZERS = ("SGD(parameters, lr=0.01)", "SGD(parameters, lr=0.01, momentum=0.9)", "Adam(parameters, lr=0.01)",
              "Adam(parameters, lr=0.01, foreach=True)")
KEEPS = ("output", "loss", "output.detach()", "output[1:]", "output.t()", "activations[0]", "activations[-1].detach()",
         "parameters[0].grad", "parameters[-1].grad", "x.grad", "parameters[0].grad.view(-1)[3:]")
HOOKS = ("output.register_hook(kept.append)", "activations[0].register_hook(kept.append)",
         "output.register_hook(lambda slope: slope * 0.5)")
THROW_SITES = ("forward", "loss", "hook", "step")


class _Generator:
    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.count = 0
        self.unused: list[int] = []
        self.writable: list[int] = []

    def number(self) -> int:
        self.count += 1
        return self.count - 1

    def chance(self, probability: float) -> bool:
        return self.choose.random() < probability

    def some(self, items: tuple, most: int, probability: float) -> tuple:
        return tuple(self.choose.sample(items, self.choose.randint(1, most))) if self.chance(probability) else ()

    def pick(self, scope: list[int], depth: int) -> int:
        """Mostly a value that nobody has used."""
        fresh = [value for value in self.unused[-3:] if value in scope] if depth == 0 else scope[-1:]
        value = self.choose.choice(fresh if fresh and self.chance(0.7) else scope)
        if value in self.unused:
            self.unused.remove(value)
        if value in self.writable:
            self.writable.remove(value)  # autograd may have saved it
        return value

    def block(self, scope: list[int], count: int, depth: int) -> tuple[Statement, ...]:
        scope = list(scope)
        made: list[Statement] = []
        while len(made) < count or made[-1].kind == "write":
            made.append(statement := self.statement(scope, depth))
            if statement.kind != "write":
                scope.append(statement.number)
                if depth == 0:
                    self.unused.append(statement.number)
        return tuple(made)

    def statement(self, scope: list[int], depth: int) -> Statement:
        choose, kind = self.choose, self.choose.random()
        targets = [value for value in self.writable if value in scope]
        if kind < 0.14 and (targets or self.chance(0.1)):
            target = choose.choice(targets or scope)
            return Statement(self.number(), "write", choose.choice(WRITES), (target, choose.choice(scope)))
        operands = (self.pick(scope, depth), self.pick(scope, depth))
        if kind < 0.24 and depth < 2:
            return self.nested(scope, operands, depth)
        if kind < 0.30:
            draw = Statement(self.number(), "value", choose.choice(DRAWS), operands)
            return Statement(self.number(), "branch", "self.training", operands, (draw,))
        number = self.number()
        if kind < 0.52:
            text = choose.choice(LAYERS)
        elif kind < 0.60:
            text = choose.choice(VIEWS)
        elif kind < 0.70:
            text = choose.choice(OTHERS)
        elif kind < 0.80:
            text = choose.choice(SAVED)
        else:
            text = choose.choice(POINTWISE)
        if text in POINTWISE or text in OTHERS[:-1] or text.startswith("self."):
            self.writable.append(number)
        return Statement(number, "value", text, operands)

    def nested(self, scope: list[int], operands: tuple[int, int], depth: int) -> Statement:
        kind = self.choose.choice(("branch", "branch", "for", "while"))
        number = self.number()
        if kind == "branch":
            text = self.choose.choice(CONDITIONS)
            otherwise = self.block(scope, self.choose.randint(1, 3), depth + 1) if self.chance(0.6) else ()
            body = self.block(scope, self.choose.randint(1, 3), depth + 1)
            return Statement(number, kind, text, operands, body, otherwise)
        body = self.block([*scope, number], self.choose.randint(1, 3), depth + 1)
        return Statement(number, kind, self.choose.choice(REPEATS), operands, body)

    def loop(self, mode: str, width: int, device: str) -> Loop:
        choose, chance = self.choose, self.chance
        size_bytes = 2 ** choose.uniform(8, 16)
        rows = min(100, max(2, round(size_bytes / 4 / width)))
        steps = choose.randint(8, 12) + (WATCHED_FROM if device == "cuda" else 0)
        checkpoint = choose.choice(("False", "True")) if not mode.startswith("scripted") and chance(0.15) else ""
        penalty_every = choose.choice((1, 2, 3)) if checkpoint != "True" and chance(0.15) else 0
        throws = tuple((choose.randrange(2, steps), choose.choice(THROW_SITES))
                       for _ in range(choose.choice((1, 1, 2))))
        return Loop(
            rows=choose.choice(((rows,), (rows,), (rows, rows, rows, rows // 2 + 1), (rows, rows + 3))), steps=steps,
            flags=choose.choice(((1,), (2,), (1, 2), (1, 1, 1, 3))), loss=choose.choice(LOSSES),
            optimizer=choose.choice(OPTIMIZERS), accumulate=choose.choice((1, 1, 1, 2, 3)),
            zero=choose.choice(("zero_grad()", "zero_grad(set_to_none=False)")), zero_first=chance(0.5),
            input_grad=chance(0.3) or bool(checkpoint or penalty_every), keep=self.some(KEEPS, 3, 0.6),
            keep_every=choose.choice((1, 1, 2, 3)), hold=choose.choice((0, 0, 1, 3)), write_kept=chance(0.1),
            # The frames of an error in the forward keep torch's hooks for non-reentrant checkpoints in force.
            keep_errors=chance(0.3) and checkpoint != "False", forget=chance(0.3), hooks=self.some(HOOKS, 2, 0.2),
            retain_every=choose.choice((1, 2, 3)) if chance(0.2) else 0, penalty_every=penalty_every,
            checkpoint=checkpoint, throws=throws if chance(0.25) else (),
            evaluate_every=choose.choice((1, 2, 3)) if chance(0.3) else 0,
            evaluate_rows=choose.choice((0, 0, 4, 20)), second=chance(0.15), thread=chance(0.1))


def generate(seed: int, mode: str = "", device: str = "cpu") -> Program:
    """The program of a seed; `mode` replaces the one that it would have."""
    make = _Generator(seed)
    mode = mode or MODES[seed % len(MODES)]
    width = make.choose.choice((16, 64, 64, 144))
    statements = list(make.block([INPUT], make.choose.randint(4, 14), 0))
    values = [statement.number for statement in statements if statement.kind != "write"]
    last = values[-1]
    for value in make.unused:
        if value != last:
            statements.append(Statement(make.number(), "value", "({0} + {1}) * 0.5", (last, value)))
            last = statements[-1].number
    # The output needs gradients whatever comes before.
    statements.append(Statement(make.number(), "value", "self.linear0({0})", (last,)))
    outputs = (statements[-1].number, *make.choose.sample(values, min(len(values), make.choose.randint(1, 3))))
    loop = make.loop(mode, width, device)
    if any(where == "forward" for _, where in loop.throws):
        statements.insert(make.choose.randrange(len(statements)), Statement(make.number(), "throw", "", ()))
    return Program(seed, mode, device, width, tuple(statements), outputs, loop)
