# SPDX-License-Identifier: Apache-2.0
"""Times a planned training step against the same step unplanned.

Both are captured by stowage and run as TorchScript in one process, in turn: a pair is unplanned, planned, or the other
way round in every second pair, so that a drift of the machine falls on both. The unplanned step has been compiled
before planning begins, so the pass never sees its graph; its allocations do go through stowage's allocator, which hands
them on.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import stowage
import torch
import torchvision

ROOT = Path(__file__).resolve().parents[2]
# Enough for TorchScript to specialise and optimise its graph.
UNPLANNED_WARM_UP = 4
# TorchScript's runs, then profiling until two runs agree, planning, and the first planned runs.
PLANNED_WARM_UP = 10


@dataclass(frozen=True)
class Benchmark:
    name: str
    make_model: Callable[[], torch.nn.Module]
    batch_shape: tuple[int, ...]
    classes: int
    pairs: int
    # A sample is the mean of this many calls: one call of a tiny step is too short to time.
    calls_per_sample: int


def tiny_mlp() -> torch.nn.Module:
    """Ops so small that what stowage adds to each of them is what shows."""
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(16, 16), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


BENCHMARKS = (
    Benchmark("resnet18 batch 8", torchvision.models.resnet18, (8, 3, 224, 224), 1000, pairs=20, calls_per_sample=1),
    Benchmark("mlp 12 x 16 batch 4", tiny_mlp, (4, 16), 16, pairs=200, calls_per_sample=20),
)


def capture(benchmark: Benchmark, inputs: torch.Tensor, targets: torch.Tensor) -> Callable[[], object]:
    torch.manual_seed(0)
    model = benchmark.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = stowage.capture(model, torch.nn.functional.cross_entropy, optimizer, inputs, targets)
    return lambda: step(inputs, targets)


def planned_runs() -> int:
    return sum(phase.get("runs", 0) for region in stowage.status()["regions"] for phase in region["phases"])


def sample_ms(step: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        step()
    return (time.perf_counter_ns() - start) / calls / 1e6


def show(text: str, last: bool = False) -> None:
    """One line that is rewritten on a terminal; elsewhere only its last state."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        print(text, file=sys.stderr, flush=True)


def measure(benchmark: Benchmark, pairs: int) -> dict[str, object]:
    torch.manual_seed(0)
    inputs = torch.randn(benchmark.batch_shape)
    targets = torch.randint(benchmark.classes, benchmark.batch_shape[:1])

    show(f"{benchmark.name}: capturing and warming up the unplanned step")
    stowage.status()  # loads the plugin
    unplanned = capture(benchmark, inputs, targets)
    for _ in range(UNPLANNED_WARM_UP):
        unplanned()
    with tempfile.TemporaryDirectory() as folder:
        # Not stowage.enable: after that, a captured step compiles its graph anew, for the pass to meet it.
        torch.ops.stowage.enable(os.path.join(folder, "profile.db"))
        try:
            show(f"{benchmark.name}: profiling and planning")
            planned = capture(benchmark, inputs, targets)
            for _ in range(PLANNED_WARM_UP):
                planned()
            runs_before = planned_runs()
            samples = {unplanned: [], planned: []}
            for pair in range(pairs):
                show(f"{benchmark.name}: pair {pair + 1} of {pairs}")
                for step in (unplanned, planned) if pair % 2 == 0 else (planned, unplanned):
                    samples[step].append(sample_ms(step, benchmark.calls_per_sample))
            runs = planned_runs() - runs_before
        finally:
            torch.ops.stowage.disable()
    calls = pairs * benchmark.calls_per_sample
    if runs != calls:
        sys.exit(f"cannot time '{benchmark.name}': {runs} runs followed a plan where {calls} should; see stowage.status()")

    ratios = [with_plan / without for with_plan, without in zip(samples[planned], samples[unplanned])]
    deciles = statistics.quantiles(ratios, n=10, method="inclusive")
    row = {
        "model": benchmark.name,
        "pairs": pairs,
        "calls_per_sample": benchmark.calls_per_sample,
        "planned_ms_median": statistics.median(samples[planned]),
        "unplanned_ms_median": statistics.median(samples[unplanned]),
        "ratio_median": statistics.median(ratios),
        "ratio_p10": deciles[0],
        "ratio_p90": deciles[-1],
        "machine": machine(),
        "command": shlex.join(["scripts/bench", "step", *sys.argv[1:]]),
    }
    show(f"{benchmark.name}: planned {row['planned_ms_median']:.3f} ms, unplanned {row['unplanned_ms_median']:.3f} ms, "
         f"ratio {row['ratio_median']:.3f} ({row['ratio_p10']:.3f} to {row['ratio_p90']:.3f})", last=True)
    return row


def machine() -> str:
    processor = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")]
        processor = names[0] if names else processor
    return f"{processor}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench step", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, help="pairs for each model (default: 20 and 200)")
    parser.add_argument("--model", choices=[benchmark.name for benchmark in BENCHMARKS], help="only this one")
    parser.add_argument("--out", type=Path, default=ROOT / "out/bench-step.json", help="where the results go")
    options = parser.parse_args()
    if options.pairs is not None and options.pairs < 2:
        parser.error(f"cannot take quantiles of {options.pairs} pairs; give --pairs 2 or more")
    rows = [measure(benchmark, options.pairs or benchmark.pairs) for benchmark in BENCHMARKS
            if options.model in (None, benchmark.name)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
