# SPDX-License-Identifier: Apache-2.0
"""Measures a way to train within less memory in a process of its own: `python budget_worker.py JSON` prints JSON.

On the CPU its steps are timed against those of the same model captured and unplanned, in turn. Asked for: `device`,
`model`, `batch`, `optimizer`, `method`, `pairs`, `threads`, and `budget` or `slowdown` as text where the method takes one.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import stowage
import torch
from measuring.checkpointing import checkpoint_each, checkpoint_segments
from measuring.loop_worker import OPTIMIZERS, CpuMeter, CudaMeter
from measuring.models import Model, model_named
from measuring.rows import DRY
from measuring.worker import on_device, why_unplanned
from stowage.store import Store
from torch import nn
from torch.nn.functional import cross_entropy

#: Enough for TorchScript to specialise and optimise its graph, and for an optimizer to make its state.
WARM_UP = 4
#: Until a plan is followed: TorchScript's runs, two that are alike, and two more of the graph in which ops run again.
MOST_WARM_UP = 24
#: Steps of the steady state whose peak is taken.
STEADY = 2
#: How a model is changed for a method that does not capture it.
CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "eager": lambda network: None,
    "checkpoint_block": checkpoint_each,
    "checkpoint_sqrt": checkpoint_segments,
    # Kernels cannot be built for dry CUDA; what is kept for the backward pass is chosen as ever.
    "compiler": lambda network: network.compile(backend="aot_eager" if is_dry() else "inductor"),
}
CAPTURED = ("unplanned", "planned", "budget", "slowdown", "budget_at_checkpoint")
#: Share of the activations that the compiler may keep.
COMPILER_BUDGET = 0.5
Step = Callable[[], object]


def is_dry() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_name().endswith(DRY)


def make_step(asked: dict, method: str) -> Step:
    """A training step of a model of its own, on a batch of its own."""
    torch.manual_seed(0)
    model: Model = model_named(asked["model"])
    network = on_device(model) if asked["device"] == "cuda" else model.make()
    if method in CHANGES:
        CHANGES[method](network)
    optimizer = OPTIMIZERS[asked["optimizer"]](network.parameters())
    inputs, targets = model.batch(asked["batch"], asked["device"])
    if method in CAPTURED:
        step = stowage.capture(network, cross_entropy, optimizer, inputs, targets, strict=True)
        return lambda: step(inputs, targets)

    def eager() -> None:
        optimizer.zero_grad()
        cross_entropy(network(inputs), targets).backward()
        optimizer.step()

    return eager


def followed_phase(budgeted: bool) -> dict | None:
    """The plan in force, once its first steps have followed it."""
    phases = [phase for region in stowage.status()["regions"] for phase in region["phases"]]
    planned = [phase for phase in phases if phase["state"] == "planned" and phase["runs"] >= STEADY
               and (phase.get("budget") is not None) == budgeted]
    return planned[-1] if planned else None


def warm_up(step: Step, planned: bool, budgeted: bool) -> dict | None:
    """Runs until the steady state; returns the plan that is in force then, if any."""
    for _ in range(WARM_UP):
        step()
    if not planned:
        return None
    for _ in range(MOST_WARM_UP - WARM_UP):
        phase = followed_phase(budgeted)
        if phase is not None:
            return phase
        step()
    sys.exit(f"not planned: {why_unplanned()}")


def persistent_bytes(store: Path) -> int:
    """What lives throughout the newest planned run: parameters, optimizer state, the batch."""
    with Store(str(store)) as opened:
        run = opened.planned_run(None)
        return opened.query("SELECT sum(size_bytes) AS size_bytes FROM tensors "
                            "WHERE run_id = ? AND kind IN ('input', 'constant')", run["run_id"])[0]["size_bytes"]


class Times(NamedTuple):
    """Of a step, in nanoseconds."""

    wall: int
    cpu: int  # of all threads: what else runs on the machine hardly shows in it


def time_of(step: Step) -> Times:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    step()
    return Times(time.perf_counter_ns() - wall, time.process_time_ns() - cpu)


def time_in_turn(steps: dict[str, Step], rounds: int) -> dict[str, list[Times]]:
    """Times of each step, by round; every second round goes backwards, so that a drift of the machine falls on all."""
    samples: dict[str, list[Times]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in list(steps) if turn % 2 == 0 else list(steps)[::-1]:
            samples[name].append(time_of(steps[name]))
    return samples


def times_of(samples: dict[str, list[Times]], method: str) -> dict:
    def ratios(of: str, kind: str) -> list[float]:
        return [getattr(mine, kind) / getattr(other, kind) for mine, other in zip(samples[method], samples[of])]

    result = {"step_time_ratio": statistics.median(ratios("base", "wall")), "step_time_ratios": ratios("base", "wall"),
              "cpu_time_ratio": statistics.median(ratios("base", "cpu")), "cpu_time_ratios": ratios("base", "cpu"),
              "times_ns": samples}
    if "eager" in samples:
        result["step_time_ratio_to_eager"] = statistics.median(ratios("eager", "wall"))
        result["cpu_time_ratio_to_eager"] = statistics.median(ratios("eager", "cpu"))
    return result


def enable(asked: dict, store: Path) -> None:
    """Not stowage.enable: after that, the step it is held against would compile its graph anew, for the pass to meet."""
    method = asked["method"]
    settings = {"plan": "1" if method in CAPTURED and method != "unplanned" else "0",
                "meter": "1" if asked["device"] == "cpu" else "0"}
    if is_dry():
        settings["offload"] = "0"  # its link to host memory takes no time
    settings |= {name: asked[name] for name in ("budget", "slowdown") if asked.get(name)}
    for name, value in settings.items():
        stowage.set_option(name, value)
    torch.ops.stowage.enable(str(store))


def measure(asked: dict, folder: Path) -> dict:
    torch.set_num_threads(asked["threads"])
    torch.backends.cudnn.benchmark = False
    torch._functorch.config.activation_memory_budget = COMPILER_BUDGET if asked["method"] == "compiler" else 1.0
    method, on_cpu = asked["method"], asked["device"] == "cpu"
    stowage.status()  # loads the plugin
    steps: dict[str, Step] = {}
    if on_cpu:
        # Before stowage's allocator is there, whose meter then does not count their weights.
        steps = {"base": make_step(asked, "unplanned")}
        if method not in CAPTURED:
            steps["eager"] = make_step(asked, "eager")
        for step in steps.values():
            warm_up(step, planned=False, budgeted=False)
    enable(asked, folder / "profile.db")
    planned = method in CAPTURED and method != "unplanned"
    steps[method] = make_step(asked, method)
    phase = warm_up(steps[method], planned, budgeted=planned and method != "planned")
    meter, peaks = CpuMeter() if on_cpu else CudaMeter(), []
    for _ in range(STEADY):
        meter.reset()
        steps[method]()
        peaks.append(meter.peaks())
    result = {"peak_bytes": max(peak["allocated_bytes"] for peak in peaks),
              "reserved_bytes": max(peak["reserved_bytes"] for peak in peaks),
              "device": "cpu" if on_cpu else torch.cuda.get_device_name()}
    if phase is not None:
        result |= {"planned_peak_bytes": phase["peak_bytes"], "unplanned_peak_bytes": phase["program_peak_bytes"],
                   "persistent_bytes": persistent_bytes(folder / "profile.db"), "arena_bytes": phase["arena_bytes"],
                   "planning_s": phase["planning_ns"] / 1e9, "fitted": phase.get("budget")}
    if on_cpu and asked["pairs"] > 0:
        result |= times_of(time_in_turn(steps, asked["pairs"]), method)
    return result


def main() -> None:
    asked = json.loads(sys.argv[1])
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(asked, Path(folder))
    except torch._dynamo.exc.TorchDynamoException as error:  # its last line is advice, the first says what is missing
        result = {"failed": str(error).strip().splitlines()[0]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
