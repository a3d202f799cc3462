# SPDX-License-Identifier: Apache-2.0
"""Times loops of ops so small that what `with stowage.step():` costs is what shows, against the loops without stowage.

Both in one process, in turn: a pair is without and with, or the other way round in every second pair. Stowage is off in
the loops without, and in those with it the steps that are timed follow their plan. On the CPU, with one thread, whose
time is counted while it runs: what else the machine does matters less then.
"""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import stowage
import torch
import typer
from rich.console import Console
from rich.table import Table
from step import machine

ROOT = Path(__file__).resolve().parents[2]
OPS = 200
#: Floats of a tensor: one below the least that a step looks at, that, and more.
ELEMENTS = (64, 256, 4096)
#: Until the steps follow their plan.
WARM_UP = 6
STEPS_PER_SAMPLE = 20
#: How much longer a loop may take.
MARGIN = 0.05


def forward_only(x: torch.Tensor) -> None:
    with torch.no_grad():
        for _ in range(OPS):
            x = x * 0.5


def with_backward(x: torch.Tensor) -> None:
    """Half of the ops are autograd's."""
    x = x.requires_grad_()
    x.grad = None
    y = x
    for _ in range(OPS // 2):
        y = y * 0.5
    y.sum().backward()


LOOPS = {"forward only": forward_only, "with backward": with_backward}


@dataclass(frozen=True)
class Sample:
    ms: float  # of one step
    planned_steps: int


def sample(run: Callable[[torch.Tensor], None], elements: int, planned: bool) -> Sample:
    x = torch.randn(elements)
    if planned:
        torch.ops.stowage.enable("")
    try:
        for _ in range(WARM_UP):
            with stowage.step("cpu") if planned else contextlib.nullcontext():
                run(x)
        start = time.process_time_ns()
        for _ in range(STEPS_PER_SAMPLE):
            with stowage.step("cpu") if planned else contextlib.nullcontext():
                run(x)
        ms = (time.process_time_ns() - start) / STEPS_PER_SAMPLE / 1e6
        return Sample(ms, sum(device["planned_steps"] for device in stowage.status()["steps"]))
    finally:
        if planned:
            torch.ops.stowage.disable()


def measure(name: str, elements: int, pairs: int) -> dict:
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for planned in (False, True) if pair % 2 == 0 else (True, False):
            taken = sample(LOOPS[name], elements, planned)
            if planned and elements * 4 >= 1024 and taken.planned_steps < STEPS_PER_SAMPLE:
                sys.exit(f"cannot time '{name}' of {elements}: {taken.planned_steps} of its steps followed a plan")
            times[planned].append(taken.ms)
    ratios = [with_step / without for with_step, without in zip(times[True], times[False])]
    deciles = statistics.quantiles(ratios, n=10, method="inclusive")
    without, with_step = statistics.median(times[False]), statistics.median(times[True])
    return {"loop": name, "ops": OPS, "tensor_bytes": elements * 4, "pairs": pairs, "without_ms_median": without,
            "with_ms_median": with_step, "ratio_median": statistics.median(ratios), "ratio_p10": deciles[0],
            "ratio_p90": deciles[-1]}


def overhead(
    pairs: Annotated[int, typer.Option(min=2, help="Of each loop; the median of their ratios counts.")] = 100,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "out/bench-overhead.json",
) -> None:
    """Times what a step costs a loop of tiny ops; fails where that is more than a twentieth."""
    torch.set_num_threads(1)
    stowage.status()  # loads the plugin
    rows = [measure(name, elements, pairs) for name in LOOPS for elements in ELEMENTS]
    table = Table(box=None, pad_edge=False)
    for title in ("loop", "tensor", "without", "with", "ratio", "p10 to p90"):
        table.add_column(title, justify="left" if title == "loop" else "right", no_wrap=True)
    for row in rows:
        table.add_row(f"{row['loop']}, {OPS} ops", f"{row['tensor_bytes']:,} B", f"{row['without_ms_median']:.3f} ms",
                      f"{row['with_ms_median']:.3f} ms", f"{row['ratio_median']:.3f}",
                      f"{row['ratio_p10']:.3f} to {row['ratio_p90']:.3f}")
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "margin": MARGIN, "rows": rows}, indent=2) + "\n")
    print(f"wrote {out}", file=sys.stderr)
    if any(row["ratio_median"] > 1 + MARGIN for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(overhead)
