# SPDX-License-Identifier: Apache-2.0
"""Makes of a run what `torch.cuda.memory._snapshot()` makes of an allocator, for PyTorch's memory viewer. Needs no torch.

The viewer reads pickles of protocols 2 to 4, keys blocks by address, and numbers are JavaScript's: addresses stay below 2^53.
"""

import pickle
from bisect import bisect_left
from collections import defaultdict
from typing import Any

from stowage.exporting.lives import Block, Lives, round_up
from stowage.store import Row

#: Where the first segment lies, and what the next ones are aligned to, in bytes.
BASE, SEGMENT_BYTES = 1 << 40, 2 << 20

HELD = "parameters, state and batch: they are not planned, and their addresses are made up"
ARENA = "the arena: addresses as planned"
UPSTREAM = "what is not in the arena: first fit, addresses are made up"
MADE_UP = "first fit: the addresses of an unplanned run are not recorded, these are made up"


class FirstFit:
    """Gives each block the lowest place that is free; grows without limit."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._starts: list[int] = []  # of the free ranges, sorted
        self._ends: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        for index, (start, end) in enumerate(zip(self._starts, self._ends)):
            if end - start >= size_bytes:
                self._starts[index] += size_bytes
                if self._starts[index] == end:
                    del self._starts[index], self._ends[index]
                return start
        start = self.size_bytes
        if self._ends and self._ends[-1] == self.size_bytes:
            self._ends.pop()
            start = self._starts.pop()
        self.size_bytes = start + size_bytes
        return start

    def free(self, start: int, size_bytes: int) -> None:
        end, index = start + size_bytes, bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == end:
            end = self._ends.pop(index)
            del self._starts[index]
        if index > 0 and self._ends[index - 1] == start:
            self._ends[index - 1] = end
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)


Segment = tuple[str, int]  # what it holds, and its stream
Place = tuple[Segment, int]  # and the offset in it, in bytes


def encode(lives: Lives, classes: dict[int, str]) -> bytes:
    return pickle.dumps(snapshot(lives, classes), protocol=4)


def snapshot(lives: Lives, classes: dict[int, str]) -> dict[str, Any]:
    """Segments with their blocks as they are at the end, and the trace of allocations and frees that leads there."""
    places = _lay_out(lives)
    addresses, sizes = _map(lives, places)
    ops = {op["op"]: op for op in lives.ops}
    frames = {block: _frames(f"{block.name} ({classes[block.tensor]})", ops.get(block.op)) for block in places}

    def event(action: str, block: Block, time_ns: int, frames: list[Row]) -> Row:
        segment, offset = places[block]
        return {"action": action, "addr": addresses[segment] + offset, "size": block.size_bytes, "stream": segment[1],
                "time_us": time_ns // 1000, "frames": frames, "category": classes[block.tensor]}

    # The viewer fails on a snapshot that has categories, none of which is "unknown".
    trace = [{"action": "segment_alloc", "addr": addresses[segment], "size": size_bytes, "stream": segment[1], "time_us": 0,
              "frames": _label(segment), "category": "unknown"} for segment, size_bytes in sizes.items()]
    trace += [event("alloc", block, 0, frames[block]) for block in places if block.op is None]
    for change in lives.changes:
        block = change.block
        if block not in places:
            continue
        if change.is_free:
            freed = _frames(f"{block.name} ({classes[block.tensor]}) is freed", ops[change.op])
            trace += [event(action, block, change.time_ns, freed) for action in ("free_requested", "free_completed")]
        else:
            trace.append(event("alloc", block, change.time_ns, frames[block]))

    at_end: dict[Segment, list[tuple[int, Block]]] = defaultdict(list)
    for block, (segment, offset) in places.items():
        if block.end is None:
            at_end[segment].append((offset, block))
    segments = []
    for segment, size_bytes in sizes.items():
        blocks = _tile(addresses[segment], size_bytes, sorted(at_end[segment], key=lambda entry: entry[0]),
                       lives.run["alignment_bytes"], frames)
        active_bytes = sum(block["size"] for block in blocks if block["state"] != "inactive")
        segments.append({
            "device": 0, "address": addresses[segment], "total_size": size_bytes, "allocated_size": active_bytes,
            "active_size": active_bytes, "requested_size": sum(block["requested_size"] for block in blocks),
            "stream": segment[1], "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
            "frames": _label(segment), "blocks": blocks})
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}}


def _lay_out(lives: Lives) -> dict[Block, Place]:
    """Blocks as they begin. PyTorch has no blocks of no bytes."""
    places: dict[Block, Place] = {}
    fits: dict[Segment, FirstFit] = defaultdict(FirstFit)

    def place(block: Block) -> None:
        if block.offset_bytes is not None:
            places[block] = (ARENA, 0), block.offset_bytes
            return
        is_held = block.op is None and not block.carried
        segment = (HELD if is_held else UPSTREAM if lives.planned else MADE_UP), block.stream
        places[block] = segment, fits[segment].allocate(_rounded(block, lives))

    for block in lives.blocks:
        if block.op is None and block.size_bytes > 0:
            place(block)
    for change in lives.changes:
        if not change.is_free and change.block.size_bytes > 0:
            place(change.block)
        elif change.block in places:
            segment, offset = places[change.block]
            if segment in fits:
                fits[segment].free(offset, _rounded(change.block, lives))
    return places


def _map(lives: Lives, places: dict[Block, Place]) -> tuple[dict[Segment, int], dict[Segment, int]]:
    """Where each segment lies, and its bytes."""
    sizes: dict[Segment, int] = {}
    for block, (segment, offset) in places.items():
        sizes[segment] = max(sizes.get(segment, 0), offset + _rounded(block, lives))
    addresses, next_address = {}, BASE
    for segment, size_bytes in sizes.items():
        addresses[segment] = next_address
        next_address += (size_bytes // SEGMENT_BYTES + 1) * SEGMENT_BYTES
    return addresses, sizes


def _tile(address: int, size_bytes: int, live: list[tuple[int, Block]], alignment_bytes: int,
          frames: dict[Block, list[Row]]) -> list[Row]:
    """The blocks of a segment, one after another, without gaps."""
    blocks: list[Row] = []
    position = 0

    def add(end: int, requested_bytes: int, state: str, frames: list[Row]) -> None:
        blocks.append({"address": address + position, "size": end - position, "requested_size": requested_bytes,
                       "state": state, "frames": frames})

    for offset, block in live:
        if offset > position:
            add(offset, 0, "inactive", [])
        position = offset
        end = position + round_up(block.size_bytes, alignment_bytes)
        add(end, block.size_bytes, "active_allocated", frames[block])
        position = end
    if position < size_bytes:
        add(size_bytes, 0, "inactive", [])
    return blocks


def _rounded(block: Block, lives: Lives) -> int:
    return round_up(block.size_bytes, lives.run["alignment_bytes"])


def _frames(tensor: str, op: Row | None) -> list[Row]:
    """Innermost first, as `file:line:function` is shown: the tensor, its op, the op's module and source line."""
    frames = [_frame(tensor)]
    if op is None:
        return [*frames, _frame("there before the step")]
    frames.append(_frame(f"{op['kind']} '{op['name']}'", "op", op["op"]))
    if op["scope"]:
        frames.append(_frame(op["scope"], "module"))
    if op["source"]:
        file, _, line = op["source"].rpartition(":")
        frames.append(_frame("step", file, int(line)) if line.isdecimal() else _frame("step", op["source"]))
    return frames


def _label(segment: Segment) -> list[Row]:
    return [_frame(segment[0])]


def _frame(name: str, filename: str = "stowage", line: int = 0) -> Row:
    return {"filename": filename, "line": line, "name": name}
