# SPDX-License-Identifier: Apache-2.0
"""Snapshots and traces of our own making."""

import pickle
from pathlib import Path
from typing import Any

MIB = 1 << 20
DATA = Path(__file__).parents[1] / "data" / "snapshots"
Row = dict[str, Any]


def frame(file: str, line: int, name: str) -> Row:
    return {"filename": file, "line": line, "name": name}


def event(action: str, address: int, size: int, *frames: Row, **more: Any) -> Row:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": list(frames), **more}


def alloc(address: int, size: int, *frames: Row, **more: Any) -> Row:
    return event("alloc", address, size, *frames, **more)


def freed(address: int, size: int) -> list[Row]:
    return [event("free_requested", address, size), event("free_completed", address, size)]


def block(address: int, size: int, requested: int, state: str = "active_allocated", *frames: Row) -> Row:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames)}


def segment(address: int, size: int, *blocks: Row, device: int = 0, stream: int = 0, kind: str = "small") -> Row:
    """Free at its end."""
    used = sum(each["size"] for each in blocks)
    rest = [block(address + used, size - used, 0, "inactive")] if used < size else []
    return {"device": device, "address": address, "total_size": size, "stream": stream, "segment_type": kind,
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [*blocks, *rest]}


def snapshot(segments: list[Row], *histories: list[Row]) -> Row:
    return {"segments": segments, "device_traces": list(histories)}


def save(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def case_35() -> Row:
    """100 B from before recording, and 20 B for a while."""
    return snapshot([segment(4096, 2 * MIB, block(4096, 512, 100))],
                    [alloc(4608, 20, frame("train.py", 7, "step")), *freed(4608, 20)])


def case_10() -> str:
    """Small blocks are cut from what was a large one."""
    rows = [f"alloc,first,{1100 * MIB}", "free,first"]
    rows += [f"alloc,kept{number},{(16 + number % 2) * MIB}" for number in range(60)]
    return "\n".join([*rows, f"alloc,second,{1100 * MIB}", ""])


def batches(*batches: tuple[int, int]) -> str:
    """Of each, so many blocks of so many MiB that are freed after the last."""
    rows = []
    for count, mib in batches:
        rows += [f"alloc,{mib}x{number},{mib * MIB}" for number in range(count)]
        rows += [f"free,{mib}x{number}" for number in range(count)]
    return "\n".join([*rows, ""])


def interleaved() -> str:
    """Two of four blocks go, and none of the holes is large enough."""
    rows = [f"alloc,a{number},{16 * MIB}" for number in range(4)] + ["free,a1", "free,a3", f"alloc,b,{32 * MIB}"]
    return "\n".join([*rows, ""])
