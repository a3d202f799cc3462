# SPDX-License-Identifier: Apache-2.0
"""Runs a sequence of allocations on torch's own allocator, without stowage; prints what was reserved, and the sequence
as half-open intervals.

    python fragmentation.py split|small_first|large_first|interleaved
"""

import json
import sys

import torch

from drycuda import control

MIB = 1 << 20
CONTEXT_MIB = 512


class Trace:
    """Allocates and frees blocks by name."""

    def __init__(self) -> None:
        self.live: dict[str, torch.Tensor] = {}
        self.begun: dict[str, tuple[int, int]] = {}
        self.rows: list[tuple[str, int, int, int]] = []
        self.time = 0
        self.ran_out = ""

    def alloc(self, name: str, mib: int) -> None:
        self.begun[name] = (self.time, mib * MIB)
        self.time += 1
        try:
            self.live[name] = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as failure:
            self.ran_out = str(failure)

    def free(self, name: str) -> None:
        begin, size_bytes = self.begun.pop(name)
        self.rows.append((name, begin, self.time, size_bytes))
        self.time += 1
        self.live.pop(name, None)

    def all_rows(self) -> list[tuple[str, int, int, int]]:
        return self.rows + [(name, begin, self.time, size_bytes) for name, (begin, size_bytes) in self.begun.items()]


def split(trace: Trace) -> None:
    control.set_total_bytes((CONTEXT_MIB + 2100) * MIB)
    trace.alloc("large", 1100)
    trace.free("large")
    for index in range(60):
        trace.alloc(f"kept{index}", 16 + index % 2)
    trace.alloc("large_again", 1100)


def sizes(*batches: tuple[int, int]):
    def run(trace: Trace) -> None:
        for count, mib in batches:
            for index in range(count):
                trace.alloc(f"{mib}x{index}", mib)
            for index in range(count):
                trace.free(f"{mib}x{index}")

    return run


def interleaved(trace: Trace) -> None:
    for index in range(4):
        trace.alloc(f"a{index}", 16)
    trace.free("a1")
    trace.free("a3")
    trace.alloc("b", 32)


CASES = {"split": split, "small_first": sizes((8, 16), (4, 32)), "large_first": sizes((4, 32), (8, 16)),
         "interleaved": interleaved}

if __name__ == "__main__":
    trace = Trace()
    CASES[sys.argv[1]](trace)
    print(json.dumps({"reserved_mib": torch.cuda.memory_reserved() / MIB, "ran_out": trace.ran_out,
                      "allocated_mib": torch.cuda.memory_allocated() / MIB, "rows": trace.all_rows()}))
