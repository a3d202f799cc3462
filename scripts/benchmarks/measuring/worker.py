# SPDX-License-Identifier: Apache-2.0
"""Measures one training step in a process of its own: `python worker.py MODEL BATCH OPTIMIZER MODE` prints JSON.

A mode is `eager`, `captured` (by stowage, unplanned) or `planned`. What is measured is the steady state.
"""

import json
import sys
import time
from collections.abc import Callable

import stowage
import torch
from measuring.models import Model, model_named
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

DEVICE = "cuda"
#: The first step makes the optimizer's state and the second frees what the first needed besides.
WARM_UP = 2
STEPS = 6
#: Profiled runs differ until the allocator is in its steady state.
PLANNED_STEPS = 12
#: Steps that follow the plan, of which the first may still make room for the arena.
FOLLOWED = 4

OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
}


def on_device(model: Model) -> nn.Module:
    """The model as `.to(DEVICE)` leaves it, but initialised there: big ones take long in the host's memory."""
    with torch.device("meta"):
        made = model.make()
    made.to_empty(device=DEVICE)
    for tensor in (*made.parameters(), *made.buffers()):
        with torch.no_grad():
            tensor.normal_(0, 0.02) if tensor.is_floating_point() else tensor.zero_()
    return made


def eager_step(network: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(network(inputs), targets).backward()
        optimizer.step()

    return step


def peaks_of(step: Callable[[], None]) -> tuple[int, int]:
    """Bytes allocated and reserved at most while `step` runs; reserved is what the process holds."""
    torch.cuda.reset_peak_memory_stats()
    step()
    stats = torch.cuda.memory_stats()
    return stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]


def phase_followed() -> dict | None:
    """The plan in force, once enough steps have followed it."""
    phases = [phase for region in stowage.status()["regions"] for phase in region["phases"]]
    planned = [phase for phase in phases if phase["state"] == "planned" and phase["runs"] >= FOLLOWED]
    return planned[-1] if planned else None


def why_unplanned() -> str:
    status = stowage.status()
    reasons = [f"{graph['name']}: {graph['why']}" for graph in status["left_alone"]]
    reasons += [phase.get("why", "its allocations were never steady") for region in status["regions"]
                for phase in region["phases"] if phase["state"] != "planned"]
    return "; ".join(reasons) or "no graph met stowage"


def measure(name: str, batch: int, optimizer_name: str, mode: str) -> dict:
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    model = model_named(name)
    network = on_device(model)
    optimizer = OPTIMIZERS[optimizer_name](network.parameters())
    inputs, targets = model.batch(batch, DEVICE)
    start = time.perf_counter()
    if mode == "eager":
        step = eager_step(network, optimizer)
    else:
        if mode == "planned":
            stowage.enable()
        step = stowage.capture(network, cross_entropy, optimizer, inputs, targets, strict=True)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "capture_seconds": time.perf_counter() - start}
    if mode == "planned":
        peaks = planned_peaks(lambda: step(inputs, targets), result)
    else:
        peaks = [peaks_of(lambda: step(inputs, targets)) for _ in range(STEPS)][WARM_UP:]
    return result | {"allocated_bytes": max(allocated for allocated, _ in peaks),
                     "reserved_bytes": max(reserved for _, reserved in peaks)}


def planned_peaks(step: Callable[[], None], result: dict) -> list[tuple[int, int]]:
    """Runs until a plan is in force and followed, and writes into `result` what the plan promises."""
    peaks = []
    for _ in range(PLANNED_STEPS):
        peaks.append(peaks_of(step))
        phase = phase_followed()
        if phase is not None:
            break
    else:
        sys.exit(f"not planned: {why_unplanned()}")
    result |= {key: phase[key] for key in ("bound_bytes", "arena_bytes", "arena_bound_bytes", "order_status",
                                           "layout_status")}
    result |= {"peak_bytes": phase["peak_bytes"], "plan_seconds": phase["planning_ns"] / 1e9}
    return peaks[1 - FOLLOWED:]


def main() -> None:
    name, batch, optimizer, mode = sys.argv[1:]
    try:
        result = measure(name, int(batch), optimizer, mode)
    except torch.OutOfMemoryError:
        held = torch.cuda.memory_reserved()
        result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                  "out_of_memory": f"out of memory with {held / 2**30:.1f} GiB reserved"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
