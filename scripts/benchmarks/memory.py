# SPDX-License-Identifier: Apache-2.0
"""Measures the GPU memory of whole training steps: eager, with expandable segments, captured, planned.

Planned steps run with expandable segments, which pack the weights best, and with native ones in a column of the file.
Every figure comes from a process of its own, and is the peak of the steady state. Without a GPU they run on dry CUDA:
the caching allocator is PyTorch's own, the kernels do nothing, and the sizes of cuDNN's workspaces are set to none.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import torch
import typer
from measuring.models import MODELS, QUICK, TINY, Model
from measuring.rows import DRY, Row, means, show
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[2]
OPTIMIZERS = ("sgd", "adam")
#: Mode of a figure: what the worker is asked for, and PyTorch's allocator settings.
MODES = {
    "eager": ("eager", ""),
    "expandable": ("eager", "expandable_segments:True"),
    "captured": ("captured", ""),
    "captured_expandable": ("captured", "expandable_segments:True"),
    "planned": ("planned", "expandable_segments:True"),
    "planned_native": ("planned", ""),
}
#: Processes at once; building a big model's graph takes a CPU and a few GiB.
AT_ONCE = 2
TIMEOUT_S = 1800

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def launcher() -> list[str]:
    """What to put before a command for it to find a device."""
    if torch.cuda.is_available():
        return []
    dry = str(ROOT / "scripts/drycuda")
    if subprocess.run([dry, "true"]).returncode != 0:  # once, before many start: it may have to be built
        sys.exit("cannot measure without a GPU: dry CUDA does not start; see above")
    return [dry]


def measure(row: Row, mode: str, start: list[str]) -> dict:
    """The worker's answer, or why there is none."""
    asked, settings = MODES[mode]
    return ask("worker.py", [row.model, str(row.batch), row.optimizer, asked], start, settings)


def ask(worker: str, arguments: list[str], start: list[str], settings: str, timeout_s: int = TIMEOUT_S) -> dict:
    """What a process that runs `worker` prints last, or why it does not; `settings` are PyTorch's allocator's."""
    command = [*start, sys.executable, str(Path(__file__).with_name("measuring") / worker), *arguments]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTORCH_ALLOC_CONF", None)
    environment["PYTORCH_CUDA_ALLOC_CONF"] = settings
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {timeout_s} s"}
    if done.returncode != 0:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def chosen(named: str, known: list[str], what: str) -> list[str]:
    """The comma-separated names in `named`, all of them in `known`."""
    names = named.split(",")
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"no {what} '{name}'; there are {', '.join(known)}")
    return names


def rows_of(models: list[Model], batches: str | None, optimizers: list[str]) -> list[Row]:
    try:
        sizes = [int(size) for size in batches.split(",")] if batches else None
    except ValueError:
        raise typer.BadParameter(f"batches are whole numbers separated by commas, found '{batches}'") from None
    return [Row(model.name, batch, optimizer, model.in_table)
            for model in models for batch in sizes or model.batches for optimizer in optimizers]


def read_rows(file: Path, rows: list[Row]) -> None:
    """Takes over from an earlier run what it measured."""
    if not file.exists():
        return
    earlier = json.loads(file.read_text())
    if earlier["torch"] != torch.__version__:
        sys.exit(f"cannot resume '{file}': measured with torch {earlier['torch']}, this is {torch.__version__}")
    known = {(row["model"], row["batch"], row["optimizer"]): row for row in earlier["rows"]}
    for row in rows:
        row.take_over(known.get((row.model, row.batch, row.optimizer), {}))
        row.device = earlier["device"] if row.done_modes() else ""


def run_all(rows: list[Row], notes: Console, save: Callable[[], None]) -> None:
    jobs = [(row, mode) for row in rows for mode in MODES if mode not in row.done_modes()]
    start = launcher() if jobs else []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pending = {pool.submit(measure, row, mode, start): (row, mode) for row, mode in jobs}
            for future in as_completed(pending):
                row, mode = pending[future]
                row.record(mode, future.result())
                save()
                progress.update(task, advance=1, description=f"{row.model} {row.batch} {row.optimizer} {mode}")
                if mode in row.reasons:
                    notes.print(f"{row.model} {row.batch} {row.optimizer}, {mode}: {row.reasons[mode]}", soft_wrap=True)


@app.command()
def memory(
    models: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    batches: Annotated[str | None, typer.Option(help="Instead of each model's own, such as 1,32.")] = None,
    optimizers: Annotated[str, typer.Option(help="sgd (with momentum 0.9), adam or both.")] = ",".join(OPTIMIZERS),
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {', '.join(QUICK)}.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what the file in --out holds.")] = False,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "out/bench-memory.json",
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Measures what training steps of many models hold on the GPU, unplanned and planned."""
    offered = {model.name: model for model in (TINY if tiny else MODELS)}
    names = chosen(models, list(offered), "model") if models else list(QUICK if quick else offered)
    rows = rows_of([offered[name] for name in names], batches, chosen(optimizers, list(OPTIMIZERS), "optimizer"))
    if resume:
        read_rows(out, rows)
    out.parent.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        device = next((row.device for row in rows if row.device), None)
        results = {"device": device, "dry": device is not None and device.endswith(DRY), "torch": torch.__version__,
                   "command": shlex.join(["scripts/bench", "memory", *sys.argv[1:]]),
                   "cudnn": {"enabled": True, "benchmark": False, "dry_workspace_bytes": 0},
                   "rows": [row.fields() for row in rows], "means": means(rows)}
        unfinished = out.with_suffix(".part")
        unfinished.write_text(json.dumps(results, indent=2) + "\n")
        unfinished.replace(out)

    save()
    run_all(rows, Console(stderr=True, highlight=False), save)
    show(rows, Console(width=None if sys.stdout.isatty() else 150, highlight=False))
    print(f"wrote {out}", file=sys.stderr)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="scripts/bench memory")
