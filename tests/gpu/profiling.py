# SPDX-License-Identifier: Apache-2.0
"""Whether torch.profiler still shows kernels beside a planned training; `around` also profiles before it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import stowage
import torch
from torch.profiler import ProfilerActivity

from gpu.outcome import DRY, Failure, Part, Skip
from gpu.training import DEVICE, Case, Step, Training, planned_phase

CASE = Case("resnet18", 8, "sgd")
NEEDS_S = 6


def kernels_of(training: Training, step: Step) -> int:
    """How many kernels, copies and sets torch.profiler shows of one step."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profile:
        step(training.inputs, training.targets)
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def check(part: Part, around: bool) -> str:
    training = Training(CASE)
    counts = {"before": kernels_of(training, training.eager_step)} if around else {}
    with tempfile.TemporaryDirectory() as folder:
        stowage.enable(store=Path(folder) / "profile.db")
        step = training.capture()
        training.run(step)
        planned_phase()
        counts["after"] = kernels_of(training, step)
        stowage.disable()
    text = ", ".join(f"{count} device events {when} planning" for when, count in counts.items())
    if 0 not in counts.values():
        return text
    if part.dry:
        raise Skip(f"{DRY}: torch.profiler sees no CUPTI; {text}")
    raise Failure(text)


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    around = sys.argv[2] == "around"
    name = "torch.profiler before and after planning" if around else "torch.profiler first used after planning"
    part.attempt(name, NEEDS_S, lambda: check(part, around))


if __name__ == "__main__":
    main()
