# SPDX-License-Identifier: Apache-2.0
"""Writes the snapshots of this folder, and beside them what the allocator itself counted, from torch on dry CUDA.

    PYTHONPATH=tests DRYCUDA_DEVICES=2 scripts/drycuda .venv/bin/python tests/data/snapshots/make_snapshots.py

The snapshots are those of torch.cuda.memory._dump_snapshot, but for the folders in the names of files.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drycuda import control

FOLDER = Path(__file__).parent
MIB = 1 << 20
KEPT = ("requested_bytes.all.peak", "reserved_bytes.all.peak", "reserved_bytes.all.current", "allocated_bytes.all.current",
        "active_bytes.all.current")


def record(**options: Any) -> None:
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.memory._record_memory_history(**options)


def save(name: str) -> dict[str, Any]:
    snapshot = torch.cuda.memory._snapshot()
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    torch.cuda.memory._record_memory_history(enabled=None)
    frames = [frame for history in snapshot["device_traces"] for event in history for frame in event["frames"]]
    frames += [frame for segment in snapshot["segments"] for block in segment["blocks"] for frame in block["frames"]]
    for frame in frames:
        for folder in sys.path:
            if folder.endswith("site-packages"):
                frame["filename"] = frame["filename"].replace(folder, "site-packages")
        if not frame["filename"].startswith("site-packages"):
            frame["filename"] = frame["filename"].rsplit("/", 1)[-1]
    with open(FOLDER / f"{name}.pickle", "wb") as file:
        pickle.dump(snapshot, file)
    return {"devices": [{key: stat.get(key, 0) for key in KEPT} for stat in stats]}


def train() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two layers, with their optimizer's state."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    batch = torch.randn(512, 256, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def training() -> dict[str, Any]:
    """A step, recorded after another had made the model's and the optimizer's memory."""
    model, optimizer = train()
    record()
    step(model, optimizer)
    return save("training")


def ring() -> dict[str, Any]:
    """Two steps, of which the history keeps the last 40 events."""
    record(max_entries=40, stacks="python")
    model, optimizer = train()
    step(model, optimizer)
    return save("ring")


def devices() -> dict[str, Any]:
    """Two devices; on the first, a block that another stream still uses, and one that the device has no room for."""
    record(stacks="python")
    kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:0"), torch.empty(100, dtype=torch.uint8, device="cuda:1")]
    side = torch.cuda.Stream()
    with control.held_events():
        lent = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:0")
        lent.record_stream(side)
        with torch.cuda.stream(side):
            lent.add_(1)
        del lent
        control.set_total_bytes(1024 * MIB)
        kept.append(torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:0"))
        found = save("devices")
    return found


def ran_out() -> dict[str, Any]:
    """Small blocks lie in what was a large one, so that it cannot be made again."""
    control.set_total_bytes((512 + 2100) * MIB)
    record(stacks="python")
    large = torch.empty(1100 * MIB, dtype=torch.uint8, device="cuda")
    del large
    small = [torch.empty((16 + number % 2) * MIB, dtype=torch.uint8, device="cuda") for number in range(60)]
    try:
        torch.empty(1100 * MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        found = save("ran_out")
    del small
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    for make in (training, ring, devices, ran_out):
        found[make.__name__] = make()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    (FOLDER / "counted.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
