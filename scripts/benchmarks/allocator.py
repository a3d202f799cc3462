# SPDX-License-Identifier: Apache-2.0
"""Times an allocation and its free on CUDA: of a planned run, and of PyTorch's allocator where it has them cached.

Both in one process, repetitions interleaved; what counts is the ratio. Without a GPU it runs on dry CUDA, which changes
nothing: neither allocator asks the device for anything.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/bench"
TARGET = "cuda_allocator_benchmark"


def build() -> Path:
    """Builds the benchmark, with its progress shown."""
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSTOWAGE_BACKEND=cuda",
                 "-DSTOWAGE_BUILD_TESTS=OFF", "-DSTOWAGE_BUILD_BENCH=ON", f"-DPython3_EXECUTABLE={sys.executable}"]
    for command in (configure, ["cmake", "--build", BUILD, "--target", TARGET]):
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            sys.exit("cannot build the benchmark: see above")
    return BUILD / "benchmarks" / TARGET


def run(binary: Path, repetitions: int) -> list[dict]:
    launcher = [] if torch.cuda.is_available() else [str(ROOT / "scripts/drycuda")]
    command = [*launcher, str(binary), f"--benchmark_repetitions={repetitions}", "--benchmark_enable_random_interleaving",
               "--benchmark_format=json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ""})
    if done.returncode != 0:
        sys.exit(f"cannot run the benchmark: it ended with status {done.returncode}; see above")
    return [each for each in json.loads(done.stdout)["benchmarks"] if each["run_type"] == "iteration"]


def rows_of(measured: list[dict]) -> list[dict]:
    """By number of tensors live at once: nanoseconds for an allocation and its free, and their ratio."""
    times: dict[tuple[str, int], list[float]] = {}
    for each in measured:
        name, live = each["name"].split("/")[:2]
        times.setdefault((name, int(live)), []).append(each["cpu_time"] / int(live))
    rows = []
    for live in sorted({live for _, live in times}):
        native, planned = (median(times[name, live]) for name in ("Native", "Planned"))
        rows.append({"live_tensors": live, "native_ns": native, "planned_ns": planned, "ratio": planned / native})
    return rows


def allocator(
    repetitions: Annotated[int, typer.Option(min=1, help="Of each measurement; the median counts.")] = 9,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "out/bench-allocator.json",
) -> None:
    """Times an allocation and its free on CUDA, planned against PyTorch's cached path."""
    rows = rows_of(run(build(), repetitions))
    table = Table(box=None, pad_edge=False)
    for title in ("live at once", "native, cached", "planned", "ratio"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(str(row["live_tensors"]), f"{row['native_ns']:.0f} ns", f"{row['planned_ns']:.0f} ns",
                      f"{row['ratio']:.2f}")
    Console(highlight=False).print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"torch": torch.__version__, "repetitions": repetitions, "rows": rows}, indent=2) + "\n")
    print(f"wrote {out}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(allocator)
