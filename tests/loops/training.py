# SPDX-License-Identifier: Apache-2.0
"""A small transformer, and what training it shows, each turn of its loop a step of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import stowage
import torch
from loops.modes import Seen, everything
from torch import nn
from torch.nn.functional import cross_entropy

VOCABULARY = 64
BATCH = 16


class Transformer(nn.Module):
    """Predicts a token at each position."""

    def __init__(self, layers: int = 1, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


def tokens(length: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(VOCABULARY, (batch, length))
    return x, x.roll(1, dims=1).flatten()


@dataclass(frozen=True)
class Turn:
    """One step of the loop, as stowage counted it."""

    kind: tuple  # what a user would say of it
    met: int  # how many of that kind came before
    bytes: int
    planned_bytes: int
    peak_bytes: int  # of all that the CPU holds, the arena as one block
    arena_bytes: int
    phase: dict | None  # that it was; None if it was none


class Training:
    """A transformer with AdamW. What it shows is in `seen`."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Transformer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.seen = Seen()
        self.turns: list[Turn] = []
        self._met: Counter = Counter()
        self._bytes = self._planned_bytes = 0

    @contextmanager
    def turn(self, *kind: str | int) -> Iterator[None]:
        """Around what a step does: opens it, and notes what came of it."""
        torch.ops.stowage.reset_peak()
        with stowage.step():
            yield
        status = stowage.status()
        steps = status["steps"][0] if status["steps"] else {"bytes": 0, "planned_bytes": 0, "phases": []}
        self.turns.append(Turn(kind, self._met[kind], steps["bytes"] - self._bytes,
                               steps["planned_bytes"] - self._planned_bytes, status["meter"]["peak_bytes"],
                               status["arena_bytes"], steps["phases"][0] if steps["phases"] else None))
        self._bytes, self._planned_bytes = steps["bytes"], steps["planned_bytes"]
        self._met[kind] += 1

    def micro_step(self, length: int, index: int = 0, count: int = 1, batch: int = BATCH) -> None:
        """The micro-batch `index` of `count`: the first clears the gradients, the last updates the weights."""
        x, y = tokens(length, batch)
        part = "only" if count == 1 else "first" if index == 0 else "last" if index == count - 1 else "middle"
        with self.turn("training", part, length, batch):
            if index == 0:
                self.optimizer.zero_grad()
            loss = cross_entropy(self.model(x), y) / count
            loss.backward()
            if index == count - 1:
                self.optimizer.step()
        self.seen.add(loss)

    def evaluate(self, length: int) -> None:
        x, y = tokens(length, BATCH)
        self.model.eval()
        with torch.no_grad(), self.turn("evaluation", length):
            loss = cross_entropy(self.model(x), y)
        self.model.train()
        self.seen.add(loss)


def train(loop: Callable[[Training], None]) -> Training:
    training = Training()
    loop(training)
    training.seen.add(*everything(training.model, training.optimizer))
    return training


def assert_same(loop: Callable[[Training], None]) -> list[Turn]:
    """`loop` shows the same planned as unplanned, byte by byte. Returns the planned turns."""
    stowage.set_option("meter", "1")
    unplanned = train(loop)
    assert sum(turn.planned_bytes for turn in unplanned.turns) == 0
    stowage.enable()
    planned = train(loop)
    differing = [at for at, (seen, expected) in enumerate(zip(planned.seen, unplanned.seen)) if seen != expected]
    assert differing == [] and len(planned.seen) == len(unplanned.seen)
    return planned.turns


def planned_share(turns: list[Turn]) -> float:
    """Of the bytes that stowage counted in these steps; 0 if it counted none."""
    return sum(turn.planned_bytes for turn in turns) / max(1, sum(turn.bytes for turn in turns))
