# SPDX-License-Identifier: Apache-2.0
"""Measures what training within less memory takes: stowage's budgets against hand-placed checkpoints and the compiler.

Every figure comes from a process of its own, one at a time. On the CPU peaks are all live bytes, the arena counted as a
block, and each method's steps are timed in turn with those of the same model captured and unplanned; its time is the
median of the ratios. On CUDA only bytes are taken, without a GPU on dry CUDA, which computes nothing.
"""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import stowage
import torch
import typer
from measuring.rows import DRY
from memory import ask, chosen, launcher
from rich.console import Console
from rich.table import Table
from step import machine

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SHARE = 0.5
SLOWDOWN = 1.05
METHODS = {
    "unplanned": "unplanned capture",
    "planned": "planned",
    "checkpoint_block": "checkpoint per block",
    "checkpoint_sqrt": "checkpoint sqrt(n)",
    "budget": f"budget {SHARE} of activations",
    "slowdown": f"slowdown {SLOWDOWN}",
    "budget_at_checkpoint": "budget at checkpoint's peak",
    "compiler": "compiler 0.5",
}
#: Methods that take the figures of another one.
NEEDS = {"budget": "planned", "budget_at_checkpoint": "checkpoint_block"}
#: Batch of each model by device; on the CPU what takes some ten seconds a step, in a few GiB.
SIZES = {
    "cpu": {"resnet50": 32, "vit_b_16": 16, "gpt2": 1},
    "cuda": {"resnet50": 32, "vit_b_16": 32, "gpt2": 8},
}
OPTIMIZERS = {"resnet50": "sgd", "vit_b_16": "adamw", "gpt2": "adamw", "tiny_gpt": "adamw"}
TINY = {"tiny_gpt": 4}
TIMEOUT_S = 3600
#: To compile takes minutes; where it takes longer the compiler has no row of figures.
COMPILER_TIMEOUT_S = 1200
DRY_CUDA = "dry cuda"
NO_TIMES = "it goes by measured times, which dry CUDA has not"
UNFUSED = "by the backend aot_eager, as kernels are not built on dry CUDA: what is kept is chosen as ever, nothing is fused"


@dataclass
class Row:
    model: str
    batch: int
    method: str  # a key of METHODS
    device: str  # "cpu", "cuda" or DRY_CUDA
    budget_bytes: int | None = None
    peak_bytes: int | None = None
    step_time_ratio: float | None = None  # to the model captured and unplanned
    step_time_ratio_to_eager: float | None = None  # of methods that capture nothing
    cpu_time_ratio: float | None = None  # both likewise, of the CPU time of all threads: what else runs hardly shows in it
    cpu_time_ratio_to_eager: float | None = None
    bound_time_ratio: float | None = None
    predicted_time_ratio: float | None = None
    repeated_ops: int | None = None
    met: bool | None = None  # whether the plan is within the budget
    why: str | None = None  # there are no figures
    failed: bool = False
    answer: dict = field(default_factory=dict)

    def record(self, answer: dict) -> None:
        self.answer = answer
        if "failed" in answer:
            # The compiler need not run everywhere: it wants a toolchain.
            self.why, self.failed = answer["failed"], self.method != "compiler"
            return
        fitted = answer.get("fitted") or {}
        self.peak_bytes = answer["peak_bytes"]
        for name in ("step_time_ratio", "step_time_ratio_to_eager", "cpu_time_ratio", "cpu_time_ratio_to_eager"):
            setattr(self, name, answer.get(name))
        self.budget_bytes = fitted.get("limit_bytes") or self.budget_bytes
        if self.device != DRY_CUDA:  # whose times are the host's
            self.bound_time_ratio = fitted.get("bound_time_ratio")
            self.predicted_time_ratio = fitted.get("predicted_time_ratio")
        self.repeated_ops, self.met = fitted.get("repeated_ops"), fitted.get("met")

    def fields(self) -> dict:
        return {**asdict(self), "method": METHODS[self.method]}


def budget_of(row: Row, rows: list[Row]) -> int | None:
    """The bytes that the row's method is to stay within, of the figures of others; None where it takes none."""
    needed = NEEDS.get(row.method)
    if needed is None:
        return None
    other = next(each for each in rows if (each.model, each.device, each.method) == (row.model, row.device, needed))
    if other.peak_bytes is None:
        raise LookupError(f"it takes figures of '{METHODS[needed]}', which failed")
    if row.method == "budget_at_checkpoint":
        return other.peak_bytes
    persistent_bytes, unplanned_bytes = other.answer["persistent_bytes"], other.answer["unplanned_peak_bytes"]
    return persistent_bytes + int(SHARE * (unplanned_bytes - persistent_bytes))


def measure(row: Row, rows: list[Row], pairs: int, threads: int, start: list[str]) -> None:
    if row.method == "slowdown" and row.device == DRY_CUDA:
        row.why = NO_TIMES
        return
    try:
        row.budget_bytes = budget_of(row, rows)
    except LookupError as error:
        row.why, row.failed = str(error), True
        return
    asked = {"device": "cpu" if row.device == "cpu" else "cuda", "model": row.model, "batch": row.batch,
             "optimizer": OPTIMIZERS[row.model], "method": row.method, "pairs": pairs, "threads": threads,
             "budget": None if row.budget_bytes is None else str(row.budget_bytes),
             "slowdown": str(SLOWDOWN) if row.method == "slowdown" else None}
    timeout_s = COMPILER_TIMEOUT_S if row.method == "compiler" else TIMEOUT_S
    row.record(ask("budget_worker.py", [json.dumps(asked)], start, "", timeout_s))


def is_dry() -> bool:
    """Whether what runs on CUDA runs on dry CUDA."""
    return not torch.cuda.is_available() or torch.cuda.get_device_name().endswith(DRY)


def rows_of(devices: list[str], named: list[str] | None, batch: int | None, methods: list[str], tiny: bool) -> list[Row]:
    wanted = {*methods, *(NEEDS[method] for method in methods if method in NEEDS)}
    rows = []
    for device in devices:
        sizes = TINY if tiny else SIZES[device]
        label = DRY_CUDA if device == "cuda" and is_dry() else device
        rows += [Row(model, batch or sizes[model], method, label)
                 for model in (chosen(",".join(named), list(sizes), "model") if named else sizes)
                 for method in METHODS if method in wanted]
    return rows


def run_all(rows: list[Row], pairs: int, threads: int, notes: Console, save: Callable[[], None]) -> None:
    start = launcher() if any(row.device != "cpu" for row in rows) else []
    for number, row in enumerate(rows, start=1):
        place = f"{number} of {len(rows)}: {row.model} {row.batch} on {row.device}, {METHODS[row.method]}"
        with notes.status(place):  # on a terminal
            measure(row, rows, pairs, threads, [] if row.device == "cpu" else start)
        save()
        time = "" if row.step_time_ratio is None else f", step time {row.step_time_ratio:.3f}"
        notes.print(f"{place}: {row.why or f'peak {mib(row.peak_bytes)} MiB{time}'}", soft_wrap=True, markup=False)


def show(rows: list[Row], console: Console) -> None:
    """A table for each device and model, all shares and ratios of the model captured and unplanned."""
    for device, model in dict.fromkeys((row.device, row.model) for row in rows):
        found = [row for row in rows if (row.device, row.model) == (device, model)]
        base = next((row.peak_bytes for row in found if row.method == "unplanned"), None)
        label = "dry CUDA, bytes only" if device == DRY_CUDA else device
        console.print(f"\n{model} batch {found[0].batch}, {label}", soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for title in ("budget\nMiB", "peak\nMiB", "of\nunplanned", "step time of\nunplanned", "\nof eager",
                      "CPU time of\nunplanned", "\nof eager", "step time\npredicted", "no schedule\nbelow"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in found:
            share = "-" if row.peak_bytes is None or base is None else f"{row.peak_bytes / base:.1%}"
            table.add_row(METHODS[row.method], mib(row.budget_bytes), mib(row.peak_bytes), share,
                          *map(ratio, (row.step_time_ratio, row.step_time_ratio_to_eager, row.cpu_time_ratio,
                                       row.cpu_time_ratio_to_eager, row.predicted_time_ratio, row.bound_time_ratio)))
        console.print(table)
        for row in found:
            for remark in remarks(row):
                console.print(f"{METHODS[row.method]}: {remark}", soft_wrap=True, markup=False)


def remarks(row: Row) -> list[str]:
    said = [row.why] if row.why else []
    if row.method == "compiler" and row.device == DRY_CUDA and not row.why:
        said.append(UNFUSED)
    if row.met is False:
        said.append("its plan is not within the budget")
    return said


def mib(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / MIB:,.1f}"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def budget(
    devices: Annotated[str, typer.Option(help="cpu, cuda or both.")] = "cpu,cuda",
    models: Annotated[str | None, typer.Option("--model", help="Only these, separated by commas.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Instead of each model's own.")] = None,
    methods: Annotated[str, typer.Option(help="Only these, and what they are held against.")] = ",".join(METHODS),
    pairs: Annotated[int, typer.Option(min=0, help="Steps of each kind that are timed in turn on the CPU.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Of the CPU.")] = 2,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "out/bench-budget.json",
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Measures what training within less memory takes in bytes and time."""
    rows = rows_of(chosen(devices, list(SIZES), "device"), models.split(",") if models else None, batch,
                   chosen(methods, list(METHODS), "method"), tiny)
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)

    def save() -> None:
        results = {"torch": torch.__version__, "stowage": stowage.status()["version"], "machine": machine(),
                   "command": shlex.join(["scripts/bench", "budget", *sys.argv[1:]]), "pairs": pairs,
                   "rows": [row.fields() for row in rows]}
        unfinished = out.with_suffix(".part")
        unfinished.write_text(json.dumps(results, indent=2) + "\n")
        unfinished.replace(out)

    run_all(rows, pairs, threads, Console(stderr=True, highlight=False), save)
    show(rows, Console(width=None if sys.stdout.isatty() else 150, highlight=False))
    print(f"wrote {out}", file=sys.stderr)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(budget)
