# SPDX-License-Identifier: Apache-2.0
"""Measures a training loop in a process of its own: `python loop_worker.py DEVICE MODEL BATCH OPTIMIZER LOOP MODE`
prints JSON.

A mode is `eager` or `scripted`, `planned` or not: `scripted,planned`. What is measured is the steady state.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import stowage
import torch
from measuring.models import model_named
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

#: Turns of a loop, of which the last are its steady state. What is planned takes the most to get there: TorchScript's
#: own profiling, two steps that are alike, and one in which the plan's arena replaces what was held before.
TURNS = 14
STEADY = 4
OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
}
Batches = list[tuple[Tensor, Tensor]]
Turn = Callable[[], AbstractContextManager]


def keeping(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, turn: Turn) -> Iterator[Tensor]:
    """As most loops are written: what the model made lives on until the next turn has made it anew."""
    for x, y in batches:
        with turn():
            optimizer.zero_grad()
            logits = model(x)
            loss = cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
        yield loss


def dropping(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, turn: Turn) -> Iterator[Tensor]:
    """No variable keeps what the model made."""
    for x, y in batches:
        with turn():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        yield loss


def zeroing_last(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, turn: Turn) -> Iterator[Tensor]:
    """No gradient lives on into the next turn."""
    for x, y in batches:
        with turn():
            logits = model(x)
            loss = cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss


LOOPS = {"keeping": keeping, "dropping": dropping, "zeroing_last": zeroing_last}


class CpuMeter:
    """The CPU's live bytes, the arena counted as a block. Needs stowage's allocator, which plans nothing by itself."""

    def reset(self) -> None:
        torch.ops.stowage.reset_peak()

    def peaks(self) -> dict[str, int]:
        peak_bytes = stowage.status()["meter"]["peak_bytes"]
        return {"allocated_bytes": peak_bytes, "reserved_bytes": peak_bytes}


class CudaMeter:
    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats()
        return {f"{what}_bytes": stats[f"{what}_bytes.all.peak"] for what in ("allocated", "reserved")}


def hash_of(values: list[Tensor]) -> str:
    """Of every byte: signed zeros and NaNs count."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def state_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [*network.state_dict().values(), *states]


def prepare(device: str, planned: bool) -> None:
    """On the CPU stowage's allocator is there either way, for its meter."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    stowage.status()  # loads the plugin, which has the options
    stowage.set_option("plan", "1" if planned else "0")
    stowage.set_option("meter", "1" if device == "cpu" else "0")
    if planned or device == "cpu":
        stowage.enable()


def measure(device: str, name: str, batch: int, optimizer_name: str, loop: str, mode: str) -> dict:
    scripted, planned = "scripted" in mode, "planned" in mode
    prepare(device, planned)
    model = model_named(name)
    network = model.make().to(device)
    optimizer = OPTIMIZERS[optimizer_name](network.parameters())
    called = torch.jit.script(network) if scripted else network
    batches = [model.batch(batch, device)] * TURNS
    meter = CpuMeter() if device == "cpu" else CudaMeter()
    seen: list[dict] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        meter.reset()
        with stowage.step() if planned and not scripted else contextlib.nullcontext():
            yield
        seen.append(meter.peaks())

    losses = [loss.detach().cpu() for loss in LOOPS[loop](called, optimizer, batches, turn)]
    result = {key: max(each[key] for each in seen[-STEADY:]) for key in ("allocated_bytes", "reserved_bytes")}
    result |= {"device": "cpu" if device == "cpu" else torch.cuda.get_device_name(), "torch": torch.__version__,
               "by_turn": [each["reserved_bytes"] for each in seen]}
    if device == "cpu":
        result |= {"losses": hash_of(losses), "state": hash_of(state_of(network, optimizer))}
    if planned:
        result["followed"] = followed()
    return result


def followed() -> dict:
    """What the last step followed, and what it did not find there."""
    status = stowage.status()
    phases = [phase for device in status["steps"] for phase in device["phases"]]
    result = {"notes": status["notes"], "phases": len(phases)}
    if phases and phases[0]["state"] == "planned":
        names = ("turns", "peak_bytes", "arena_bytes", "arena_bound_bytes", "bytes", "runs", "planning_ns")
        last = phases[0]["last"]
        result |= {name: phases[0][name] for name in names} | {"hit_bytes": last["hits"]["bytes"]}
        result["missed_bytes"] = {why: count["bytes"] for why, count in last["misses"].items() if count["allocations"]}
    return result


def main() -> None:
    device, name, batch, optimizer_name, loop, mode = sys.argv[1:]
    print(json.dumps(measure(device, name, int(batch), optimizer_name, loop, mode)))


if __name__ == "__main__":
    main()
