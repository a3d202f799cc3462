# SPDX-License-Identifier: Apache-2.0
"""Memory that the allocator holds unused beside what lives, and what becomes of an arena there. As a program: plans a
step, or recalls its plan from the store `argv[1]`; `argv[2]` says whether there is such memory."""

from __future__ import annotations

import json
import sys

import stowage
import torch

MIB = 1 << 20
ROWS = 2048
TENSOR_MIB = 16  # of ROWS x ROWS floats; the arena holds two


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def leave_spare(count: int = 2, mib: int = TENSOR_MIB + 2) -> list[torch.Tensor]:
    """Leaves as many unused pieces of segments, each held by what is returned."""
    segments = [block(mib + 4) for _ in range(count)]
    pins, pieces = [], []
    while segments:
        segments.pop()
        pins.append(block(4))
        pieces.append(block(mib))
    return pins


def pools() -> dict[tuple[int, int], int]:
    """Bytes reserved by pools other than the allocator's own, by id."""
    found: dict[tuple[int, int], int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = segment["segment_pool_id"]
        if pool != (0, 0):
            found[pool] = found.get(pool, 0) + segment["total_size"]
    return found


def main() -> None:
    from cuda.stepping import HOOKED, Step, hooked
    from planning import newest_region

    stowage.set_option("store", sys.argv[1])
    stowage.enable()
    step = Step(HOOKED, rows=ROWS)
    pins = leave_spare() if sys.argv[2] == "spare" else []
    step.run(8)
    step.region = newest_region()
    survivors: list[torch.Tensor] = []
    with hooked("first", survivors.append):
        step()
    phase = step.phase()
    print(json.dumps({"state": phase["state"], "recalled": phase.get("recalled"), "pins": len(pins),
                      "arena_bytes": phase.get("arena_bytes"), "pools": sorted(pools().values()),
                      "last": phase.get("last"), "survivors": len(survivors)}))
    sys.modules["survivors"] = survivors  # they live until the process ends


if __name__ == "__main__":
    main()
