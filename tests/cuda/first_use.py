# SPDX-License-Identifier: Apache-2.0
"""Enables stowage around the first use of CUDA, as its argument says; prints whether a step is planned then."""

import json
import sys

import stowage
import torch
from cuda.stepping import Step


def late() -> None:
    torch.zeros(1, device="cuda")
    stowage.enable()


def library() -> None:
    import cuda.starts_cuda  # noqa: F401

    stowage.enable()


def early() -> None:
    stowage.enable()


def caching_off() -> None:
    torch.cuda.init()  # before that, caching cannot be turned off
    before = torch.cuda.memory_allocated()
    torch.cuda.memory.caching_allocator_enable(False)
    uncached = torch.zeros(1000, device="cuda")
    stowage.enable()
    also_uncached = torch.zeros(1000, device="cuda")
    torch.cuda.memory.caching_allocator_enable(True)
    cached = torch.zeros(1000, device="cuda")
    del uncached, also_uncached, cached
    assert torch.cuda.memory_allocated() == before


if __name__ == "__main__":
    {"late": late, "library": library, "early": early, "caching_off": caching_off}[sys.argv[1]]()
    step = Step().until_planned()
    print(json.dumps({"planned": step.is_planned(), "notes": stowage.status()["notes"]}))
