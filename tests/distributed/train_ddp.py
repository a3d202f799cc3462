# SPDX-License-Identifier: Apache-2.0
"""Trains small nets with DDP on each of its settings, and writes what each rank saw to FOLDER/MODE.RANK.json.

    torchrun --nproc-per-node 2 train_ddp.py MODE FOLDER [--die-in-step STEP]

MODE is unplanned or planned. With --die-in-step the last rank kills itself in the backward of that step of each net.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import stowage
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 10
#: By name: what DDP is told, whether gradients are summed over two steps, and whether a layer rests every other step.
SETTINGS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "plain": ({}, False, False),
    "bucket_view": ({"gradient_as_bucket_view": True}, False, False),
    "unused": ({"find_unused_parameters": True}, False, True),
    "no_sync": ({}, True, False),
    "static_graph": ({"static_graph": True, "gradient_as_bucket_view": True}, False, False),
}


class Wave(nn.Module):
    """Enough pointwise ops for TorchScript to make a region of them."""

    def forward(self, x):
        y = torch.tanh(x) * torch.sigmoid(x)
        return (y * y + x.relu() * 0.5) * torch.cos(y)


class Net(nn.Module):
    def __init__(self, rests: bool) -> None:
        super().__init__()
        self.rests = rests
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.wave = torch.jit.script(Wave())
        self.hidden, self.detour, self.head = nn.Linear(8 * 64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x, step: int):
        x = self.wave(self.norm(self.conv(x)))
        x = self.wave(self.hidden(x.flatten(1)))
        if not self.rests or step % 2:
            x = x + self.detour(x).relu()
        return self.head(x)


def digest(tensors: Any) -> str:
    digester = hashlib.sha256()
    for tensor in tensors:
        digester.update(tensor.detach().contiguous().numpy().tobytes())
    return digester.hexdigest()


def train(setting: str, step_scope: Any, die_in_step: int | None) -> dict[str, Any]:
    told, accumulates, rests = SETTINGS[setting]
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(rests), bucket_cap_mb=0.01, **told)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    losses, states = [], []
    for step in range(STEPS):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
        if step == die_in_step and dist.get_rank() == dist.get_world_size() - 1:
            model.module.hidden.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        adds_up = accumulates and step % 2 == 0
        with step_scope():
            with model.no_sync() if adds_up else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x, step), y)
                loss.backward()
            if not adds_up:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 4 != 3)
        losses.append(loss.item().hex())
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        states.append(digest([*model.state_dict().values(), *gradients]))
    buckets = model._get_ddp_logging_data()["rebuilt_bucket_sizes" if setting != "unused" else "bucket_sizes"]
    return {"losses": losses, "states": states, "buckets": buckets}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("unplanned", "planned"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die-in-step", type=int)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step_scope = contextlib.nullcontext
    if asked.mode == "planned":
        stowage.set_option("poison", "1")
        stowage.enable(asked.folder / "profile.db")
        step_scope = stowage.step
    result = {"seen": {setting: train(setting, step_scope, asked.die_in_step) for setting in SETTINGS}}
    if asked.mode == "planned":
        result["status"] = stowage.status()
    (asked.folder / f"{asked.mode}.{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
