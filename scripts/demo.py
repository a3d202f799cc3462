# SPDX-License-Identifier: Apache-2.0
"""Trains three models on the CPU: as plain eager PyTorch, as a captured step without a plan, and planned.

Each training starts from the same seed. Losses and parameters must be the same to the last bit. Peaks count every live
byte that PyTorch's CPU allocator handed out: parameters, optimizer state, the batch, the arena and whatever did not come
from it. Writes out/demo.json and out/profile.db.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torchvision
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import stowage

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
VOCABULARY = 8000
#: TorchScript's own profiling, then stowage's two runs: from the fourth step on, a new plan is followed.
UNPLANNED_STEPS = 3


class Encoder(torch.nn.Module):
    """A four-layer transformer encoder with dropout that predicts a token at each position."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(256, nhead=4, dim_feedforward=1024, dropout=0.1, batch_first=True)
        self.embed = torch.nn.Embedding(VOCABULARY, 256)
        self.encoder = torch.nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
        self.head = torch.nn.Linear(256, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


@dataclass(frozen=True)
class Model:
    name: str
    make: Callable[[], torch.nn.Module]
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
    make_batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def sgd(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


def images(batch: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,)))


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(VOCABULARY, (2, 64)), torch.randint(VOCABULARY, (128,))


MODELS = (
    Model("resnet18, batch 8", torchvision.models.resnet18, sgd, images(8)),
    Model("AlexNet, batch 32", torchvision.models.alexnet, sgd, images(32)),
    Model("encoder, batch 2 x 64", Encoder,
          lambda params: torch.optim.AdamW(params, lr=1e-3), tokens),
)


@dataclass
class Training:
    losses: list[bytes]
    parameters: list[bytes]
    peaks: list[int]
    seconds: list[float]


def eager_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(model: Model, steps: int, captured: bool, advance: Callable[[], None]) -> Training:
    torch.manual_seed(0)
    network = model.make()
    optimizer = model.make_optimizer(list(network.parameters()))
    inputs, targets = model.make_batch()
    if captured:
        step = stowage.capture(network, torch.nn.functional.cross_entropy, optimizer, inputs, targets, strict=True)
    else:
        step = eager_step(network, optimizer)
    done = Training([], [], [], [])
    for _ in range(steps):
        torch.ops.stowage.reset_peak()
        start = time.perf_counter()
        loss = step(inputs, targets)
        done.seconds.append(time.perf_counter() - start)
        done.peaks.append(stowage.status()["meter"]["peak_bytes"])
        done.losses.append(loss.numpy().tobytes())
        del loss
        advance()
    done.parameters = [parameter.detach().numpy().tobytes() for parameter in network.parameters()]
    return done


@dataclass
class Row:
    name: str
    eager_peak_bytes: int
    unplanned_peak_bytes: int
    planned_peak_bytes: int
    bound_bytes: int
    arena_bytes: int
    arena_bound_bytes: int
    losses_identical: bool
    parameters_identical: bool
    plan_hits: int
    plan_misses: int
    planned_bytes_share: float
    plan_recalled: bool
    planning_ms: float
    step_time_ratio: float


def measure(model: Model, steps: int, advance: Callable[[str], None]) -> Row:
    stowage.set_option("plan", "0")
    eager = train(model, steps, captured=False, advance=lambda: advance(f"{model.name}: eager"))
    gc.collect()
    unplanned = train(model, steps, captured=True, advance=lambda: advance(f"{model.name}: captured, unplanned"))
    gc.collect()
    stowage.set_option("plan", "1")
    planned = train(model, steps, captured=True, advance=lambda: advance(f"{model.name}: captured, planned"))
    gc.collect()
    phase = next(
        (phase for phase in stowage.status()["regions"][-1]["phases"] if phase["state"] == "planned"), None
    )
    if phase is None or phase["runs"] < steps - UNPLANNED_STEPS:
        sys.exit(f"cannot show '{model.name}': its step was not planned; see stowage.status()")
    last = phase["last"]
    misses = {reason: count for reason, count in last["misses"].items() if reason != "escapes"}
    upstream_bytes = sum(count["bytes"] for count in last["misses"].values())
    steady = slice(UNPLANNED_STEPS, None)
    return Row(
        name=model.name,
        eager_peak_bytes=max(eager.peaks[steady]),
        unplanned_peak_bytes=max(unplanned.peaks[steady]),
        planned_peak_bytes=max(planned.peaks[steady]),
        bound_bytes=phase["bound_bytes"],
        arena_bytes=phase["arena_bytes"],
        arena_bound_bytes=phase["arena_bound_bytes"],
        losses_identical=eager.losses == unplanned.losses == planned.losses,
        parameters_identical=eager.parameters == unplanned.parameters == planned.parameters,
        plan_hits=last["hits"]["allocations"],
        plan_misses=sum(count["allocations"] for count in misses.values()),
        planned_bytes_share=last["hits"]["bytes"] / (last["hits"]["bytes"] + upstream_bytes),
        plan_recalled=phase["recalled"],
        planning_ms=phase["planning_ns"] / 1e6,
        # The fastest steps: what else the machine does only ever adds time.
        step_time_ratio=min(planned.seconds[steady]) / min(unplanned.seconds[steady]),
    )


def show(rows: list[Row], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in ("eager", "before", "after", "bound", "saved", "arena", "same", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            *(f"{value / MIB:,.1f}" for value in (row.eager_peak_bytes, row.unplanned_peak_bytes,
                                                  row.planned_peak_bytes, row.bound_bytes)),
            f"{1 - row.planned_peak_bytes / row.unplanned_peak_bytes:.1%}",
            f"{row.arena_bytes / MIB:,.1f}",
            "yes" if row.losses_identical and row.parameters_identical else "NO",
            f"x {row.step_time_ratio:.2f}",
        )
    console.print("Peak memory of a training step, MiB (SGD with momentum; the encoder: AdamW): eager, captured\n"
                  "before and after planning, the lower bound of any order, the arena; whether losses and parameters\n"
                  "are the same to the last bit; step time after over before.\n", soft_wrap=True)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Train three models unplanned, then planned.")
    parser.add_argument("--steps", type=int, default=6, help="training steps of each model (from 4)")
    steps = parser.parse_args().steps
    if steps <= UNPLANNED_STEPS:
        parser.error(f"argument --steps: a plan is followed from step {UNPLANNED_STEPS + 1} on, found {steps}")

    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    console, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    stowage.set_option("meter", "1")
    stowage.enable(store=out / "profile.db")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("", total=3 * steps * len(MODELS))
        for model in MODELS:
            if not notes.is_terminal:
                notes.print(f"training {model.name}")
            rows.append(measure(model, steps, lambda text: progress.update(task, advance=1, description=text)))
    show(rows, console)

    (out / "demo.json").write_text(json.dumps({"steps": steps, "models": [asdict(row) for row in rows]}, indent=2) + "\n")
    identical = all(row.losses_identical and row.parameters_identical for row in rows)
    console.print(f"\n{steps} steps each; losses and parameters "
                  f"{'identical to the last bit in all three' if identical else 'DIFFER'}.", soft_wrap=True)
    if any(row.plan_recalled for row in rows):
        console.print("Plans were recalled from out/profile.db; delete it to profile anew.", soft_wrap=True)
    console.print("Wrote out/demo.json and out/profile.db. Next: .venv/bin/stowage explain out/profile.db", soft_wrap=True)
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
