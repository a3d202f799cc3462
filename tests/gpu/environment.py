# SPDX-License-Identifier: Apache-2.0
"""What the check runs on: device, driver, torch, CUPTI, and whether stowage plans there and may use CUPTI."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from typing import Any

import stowage
import torch
from stowage.plugin import library
from torch.nn.functional import cross_entropy

from gpu.outcome import DRY, Failure, Part, Skip, first_line
from gpu.training import DEVICE, planned_phase

#: Results of cuptiSubscribe that have a known cause.
CUPTI_RESULTS = {0: "free", 35: "not permitted: the driver lets only administrators profile",
                 39: "taken: another profiler holds it"}
CALLS = 10


def versions() -> tuple[str, dict[str, Any]]:
    properties = torch.cuda.get_device_properties(DEVICE)
    values = {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "driver": driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "library": str(library()),
    }
    return ", ".join(f"{name} {value}" for name, value in values.items()), values


def driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown: there is no nvidia-smi"
    done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                          text=True)
    return first_line(done.stdout)


def kernels_compute() -> str:
    """A machine whose kernels do nothing must not pass as a GPU."""
    total = torch.full((1000,), 3.0, device=DEVICE).sum().item()
    if total != 3000:
        raise Failure(f"1000 times 3 is {total} on the device")
    return "1000 times 3 is 3000 on the device"


def cupti() -> tuple[str, dict[str, Any]]:
    """The version of the CUPTI that torch has loaded, and whether one may subscribe to it."""
    library = ctypes.CDLL(f"libcupti.so.{torch.version.cuda.split('.')[0]}")
    version, subscriber = ctypes.c_uint32(), ctypes.c_void_p()
    library.cuptiGetVersion(ctypes.byref(version))
    ignore = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(lambda *_: None)
    result = library.cuptiSubscribe(ctypes.byref(subscriber), ignore, None)
    if result == 0:
        library.cuptiUnsubscribe(subscriber)
    text = CUPTI_RESULTS.get(result, "it answers with another error")
    return f"version {version.value}, cuptiSubscribe {result}: {text}", {"version": version.value, "result": result}


def plans() -> tuple[str, dict[str, Any]]:
    """A small step is planned; what stowage told of it shows whether CUPTI was used."""
    stowage.enable()
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    inputs, targets = torch.randn(8, 64, device=DEVICE), torch.zeros(8, dtype=torch.long, device=DEVICE)
    step = stowage.capture(network, cross_entropy, optimizer, inputs, targets, strict=True)
    for _ in range(CALLS):
        step(inputs, targets)
    planned_phase()
    notes = stowage.status()["notes"]
    return f"a small step is planned; notes: {'; '.join(notes) or 'none'}", {"notes": notes}


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    part.attempt("device and versions", 0, versions, state="figure")
    part.attempt("kernels compute", 0, dry_kernels if part.dry else kernels_compute)
    part.attempt("CUPTI", 0, cupti, state="figure")
    part.attempt("stowage plans here", 0, plans)


def dry_kernels() -> str:
    raise Skip(f"{DRY}: kernels do nothing")


if __name__ == "__main__":
    main()
