# SPDX-License-Identifier: Apache-2.0
"""Makes and frees random blocks on torch's allocator and on stowage's simulation of it, and compares them.

    python random_trace.py SEED CAPACITY_MIB expandable|plain

Prints as JSON after which steps they disagreed on what is reserved or on whether there was memory, and what was seen.
"""

import json
import random
import sys

import torch
from stowage.snapshots.caching_allocator import CachingAllocator, NoMemory, Piece
from stowage.snapshots.trace import Block

from drycuda import control

MIB = 1 << 20
CONTEXT_MIB = 512
STEPS = 1500


def random_bytes(source: random.Random) -> int:
    low, high = source.choice(((0, 20), (20, 23.5), (23, 26)))
    return source.choice((int(2 ** source.uniform(low, high)), 512, MIB, MIB + 1, 10 * MIB, 16 * MIB))


def allocate(size_bytes: int, stream: torch.cuda.Stream) -> torch.Tensor | None:
    with torch.cuda.stream(stream):
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            return None


def simulate(allocator: CachingAllocator, size_bytes: int, stream: int) -> Piece | None:
    try:
        return allocator.allocate(Block(0, size_bytes, stream, 0))
    except NoMemory:
        return None


def main(seed: int, capacity_mib: int, expandable: bool) -> None:
    control.set_total_bytes((CONTEXT_MIB + capacity_mib) * MIB)
    source = random.Random(seed)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
    simulated = CachingAllocator(capacity_mib * MIB, expandable)
    live: list[tuple[torch.Tensor, Piece]] = []
    faults, failures, emptied = [], 0, 0
    for step in range(STEPS):
        if not live or source.random() < (0.65 if step // 200 % 2 == 0 else 0.35):
            size_bytes, stream = random_bytes(source), int(source.random() < 0.2)
            tensor, piece = allocate(size_bytes, streams[stream]), simulate(simulated, size_bytes, stream)
            if (tensor is None) != (piece is None):
                faults.append(step)
                break
            if tensor is None:
                failures += 1
            else:
                live.append((tensor, piece))
        else:
            tensor, piece = live.pop(source.randrange(len(live)))
            simulated.free(piece)
        tensor = None  # the list alone keeps it
        if source.random() < 0.01:
            torch.cuda.empty_cache()
            simulated.empty_cache()
            emptied += 1
        if torch.cuda.memory_reserved() != simulated.reserved_bytes:
            faults.append(step)
    print(json.dumps({"faults": faults, "failures": failures, "emptied": emptied,
                      "most_reserved_mib": torch.cuda.max_memory_reserved() / MIB,
                      "simulated_mib": simulated.most_reserved_bytes / MIB}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "expandable")
