# SPDX-License-Identifier: Apache-2.0
"""What a step reserves and allocates, unplanned and planned, with native and expandable segments, and what dry CUDA
said of it. The processes that measure are those of `scripts/bench memory`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from gpu.outcome import DRY, Failure, Part
from gpu.training import DEVICE, Case

WORKER = Path(__file__).resolve().parents[2] / "scripts/benchmarks/measuring/worker.py"
DRY_FIGURES = Path(__file__).with_name("dry_figures.json")
CASES = (Case("resnet50", 32, "sgd"), Case("gpt2", 4, "adam"))
#: By name: the worker's mode, and PyTorch's allocator settings.
MODES = {
    "eager": ("eager", ""),
    "eager expandable": ("eager", "expandable_segments:True"),
    "planned": ("planned", ""),
    "planned expandable": ("planned", "expandable_segments:True"),
}
MIB = 1 << 20

Figures = dict[str, int]


def measure(case: Case, mode: str, timeout_s: float) -> dict[str, Any]:
    """The worker's answer."""
    asked, settings = MODES[mode]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTORCH_ALLOC_CONF", None)
    command = [sys.executable, str(WORKER), case.model, str(case.batch), case.optimizer, asked]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout_s)
    if done.returncode != 0:
        raise Failure((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def figures_of(answer: dict[str, Any]) -> Figures:
    """Bytes by name; an answer without is a failure."""
    if "reserved_bytes" not in answer:
        raise Failure(answer.get("out_of_memory", "no figures"))
    return {name: answer[name] for name in ("reserved_bytes", "allocated_bytes")}


def text_of(figures: Figures, dry: Figures | None) -> str:
    """The figures in MiB, each with its ratio to dry CUDA's if that has it."""
    parts = []
    for name, value in figures.items():
        text = f"{name.removesuffix('_bytes')} {value / MIB:,.1f} MiB"
        if dry and name in dry:
            text += f" ({value / dry[name]:.3f} of {DRY}'s)"
        parts.append(text)
    return ", ".join(parts)


def check_saving(found: dict[str, Figures], planned: str, eager: str) -> str:
    """What the plan saves of eager's reserved bytes; more than eager's is a failure."""
    missing = [mode for mode in (planned, eager) if mode not in found]
    if missing:
        raise Failure(f"no figures of '{missing[0]}'")
    saved = 1 - found[planned]["reserved_bytes"] / found[eager]["reserved_bytes"]
    if saved < 0:
        raise Failure(f"'{planned}' reserves {-saved:.2%} more than '{eager}'")
    return f"'{planned}' reserves {saved:.2%} less than '{eager}'"


def read_dry_figures() -> dict[str, dict[str, Figures]]:
    """Dry CUDA's, by case and mode."""
    return json.loads(DRY_FIGURES.read_text())["figures"] if DRY_FIGURES.exists() else {}


def write_dry_figures(outcomes: Iterable[dict[str, Any]], device: str) -> None:
    """Keeps the figures of this part's outcomes for `read_dry_figures`."""
    figures: dict[str, dict[str, Figures]] = {}
    for outcome in outcomes:
        values = outcome["values"]
        if "mode" in values:
            names = ("reserved_bytes", "allocated_bytes")
            figures.setdefault(values["case"], {})[values["mode"]] = {name: values[name] for name in names}
    text = json.dumps({"device": device, "torch": torch.__version__, "figures": figures}, indent=2)
    DRY_FIGURES.write_text(text + "\n")


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    dry_figures = read_dry_figures()
    jobs = [(case, mode) for case in CASES for mode in MODES]
    found: dict[Case, dict[str, Figures]] = {case: {} for case in CASES}
    with ThreadPoolExecutor(max(1, min(len(jobs), (os.cpu_count() or 1) // 2))) as pool:
        # Those that wait start as time allows; `measure` never outlasts the part.
        answers = {job: pool.submit(lambda job=job: measure(*job, max(part.seconds_left() - 1, 1))) for job in jobs}
        for case, mode in jobs:

            def figure() -> tuple[str, dict[str, Any]]:
                try:
                    figures = figures_of(answers[case, mode].result())
                except subprocess.TimeoutExpired:
                    raise Failure("its process did not end in time") from None
                found[case][mode] = figures
                return text_of(figures, dry_figures.get(str(case), {}).get(mode)), {
                    "case": str(case), "mode": mode, **figures}

            part.attempt(f"{case}: {mode}", 0, figure, state="figure")
    for case, modes in found.items():
        for planned, eager in (("planned", "eager"), ("planned expandable", "eager expandable")):
            part.attempt(f"{case}: {planned} against {eager}", 0, lambda: check_saving(modes, planned, eager))


if __name__ == "__main__":
    main()
