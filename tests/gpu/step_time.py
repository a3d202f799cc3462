# SPDX-License-Identifier: Apache-2.0
"""The time of a planned step over that of the same step unplanned: paired and alternating in one process."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import stowage
import torch

from gpu.outcome import DRY, Failure, Part, Skip
from gpu.training import DEVICE, Case, Training

#: Each with the seconds that capturing, planning and the pairs take at most.
CASES = ((Case("resnet50", 32, "sgd"), 15), (Case("gpt2", 4, "adam"), 20))
PAIRS = 30
#: Enough for cuDNN to settle, and for TorchScript to compile the graph.
UNPLANNED_WARM_UP = 4
#: Profiling until two runs agree, planning, and the first planned runs.
PLANNED_WARM_UP = 10


def step_ms(step: Callable[[], object]) -> float:
    """From before the first kernel to after the last, on an idle device: what the host does between them counts."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def summary(planned: list[float], unplanned: list[float]) -> dict[str, float]:
    """Medians of both, and of the ratios of the pairs, with their deciles."""
    ratios = [with_plan / without for with_plan, without in zip(planned, unplanned, strict=True)]
    deciles = statistics.quantiles(ratios, n=10, method="inclusive")
    return {"planned_ms": statistics.median(planned), "unplanned_ms": statistics.median(unplanned),
            "ratio": statistics.median(ratios), "ratio_p10": deciles[0], "ratio_p90": deciles[-1], "pairs": len(ratios)}


def planned_runs() -> int:
    return sum(phase.get("runs", 0) for region in stowage.status()["regions"] for phase in region["phases"])


def pairs(case: Case) -> tuple[list[float], list[float]]:
    """Milliseconds of each planned step, and of each unplanned.

    The unplanned step is compiled before planning begins, so stowage never meets its graph.
    """
    stowage.status()  # loads the plugin
    without, with_plan = Training(case), Training(case)
    unplanned = bound(without)
    for _ in range(UNPLANNED_WARM_UP):
        unplanned()
    with tempfile.TemporaryDirectory() as folder:
        # Not stowage.enable: after that, a captured step compiles its graph anew, for the pass to meet it.
        torch.ops.stowage.enable(str(Path(folder) / "profile.db"))
        try:
            planned = bound(with_plan)
            for _ in range(PLANNED_WARM_UP):
                planned()
            before = planned_runs()
            samples: dict[Callable, list[float]] = {unplanned: [], planned: []}
            for pair in range(PAIRS):
                for step in (unplanned, planned) if pair % 2 == 0 else (planned, unplanned):
                    samples[step].append(step_ms(step))
            followed = planned_runs() - before
        finally:
            torch.ops.stowage.disable()
    if followed != PAIRS:
        raise Failure(f"{followed} runs followed a plan where {PAIRS} should")
    return samples[planned], samples[unplanned]


def bound(training: Training) -> Callable[[], torch.Tensor]:
    step = training.capture()
    return lambda: step(training.inputs, training.targets)


def measure(part: Part, case: Case) -> tuple[str, dict[str, float]]:
    planned, unplanned = pairs(case)
    if part.dry:
        raise Skip(f"{DRY}: kernels do nothing, {PAIRS} pairs not timed")
    found = summary(planned, unplanned)
    return (f"planned {found['planned_ms']:.3f} ms, unplanned {found['unplanned_ms']:.3f} ms, "
            f"ratio {found['ratio']:.3f} ({found['ratio_p10']:.3f} to {found['ratio_p90']:.3f})"), found


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    for case, needs_s in CASES:
        part.attempt(f"{case}: step time, planned over unplanned", needs_s, lambda: measure(part, case), state="figure")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
