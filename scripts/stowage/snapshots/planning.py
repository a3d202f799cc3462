# SPDX-License-Identifier: Apache-2.0
"""What a trace needs of the device under torch's allocator, and under a layout that stowage plans for it."""

from collections import defaultdict
from dataclasses import dataclass, field

from stowage.snapshots.caching_allocator import CachingAllocator, NoMemory, Piece
from stowage.snapshots.trace import MIB, Block, Segment, Trace
from stowage.solving import plan_layout

#: Planning more blocks takes more than a few seconds, so it has to be asked for.
MOST_BLOCKS = 100_000
_STEP_BYTES = 2 * MIB  # of what the driver gives


@dataclass
class Replay:
    """A trace run through the simulated allocator. One that fails ends there."""

    most_reserved_bytes: int
    reserved_bytes: int
    failed: tuple[int | None, Block] | None  # at which event, asking for what
    segments: list[Segment] = field(repr=False)  # where it failed


@dataclass
class StreamLayout:
    """Blocks of a stream, laid out in one segment: what another stream uses is not shared with it."""

    stream: int
    blocks: int
    height_bytes: int
    bound_bytes: int  # no layout is lower: the most that is live at once
    status: str


def replay(trace: Trace, capacity_bytes: int | None = None, expandable: bool = False) -> Replay:
    allocator = CachingAllocator(capacity_bytes, expandable)
    pieces: dict[int, Piece] = {}
    for event, block in [*((None, block) for block in trace.before), *trace.changes]:
        if event is not None and block.first != event:
            allocator.free(pieces.pop(id(block)))
            continue
        try:
            pieces[id(block)] = allocator.allocate(block)
        except NoMemory:
            return Replay(allocator.most_reserved_bytes, allocator.reserved_bytes, (event, block), allocator.segments())
    return Replay(allocator.most_reserved_bytes, allocator.reserved_bytes, None, [])


def lay_out(trace: Trace, name: str, deadline_ms: int) -> list[StreamLayout]:
    """A layout for each stream, in the time given for all; raises SolverError."""
    streams: dict[int, list[Block]] = defaultdict(list)
    for block in trace.blocks:
        streams[block.stream].append(block)
    return [_lay_out(trace, stream, blocks, name, max(1, deadline_ms * len(blocks) // len(trace.blocks)))
            for stream, blocks in sorted(streams.items())]


def _lay_out(trace: Trace, stream: int, blocks: list[Block], name: str, deadline_ms: int) -> StreamLayout:
    rows = [(str(number), trace.first if block.first is None else block.first,
             trace.end if block.end is None else block.end, block.rounded_bytes) for number, block in enumerate(blocks)]
    # A trace without events is one moment.
    rows = [(name_, lower, max(upper, lower + 1), size_bytes) for name_, lower, upper, size_bytes in rows]
    found = plan_layout(rows, name, deadline_ms)
    return StreamLayout(stream, len(blocks), found["height_bytes"], found["bound_bytes"], found["status"])


def reserved(layouts: list[StreamLayout]) -> tuple[int, int]:
    """What the layouts take from the driver, and what any would."""
    up = [[-(-bytes_ // _STEP_BYTES) * _STEP_BYTES for bytes_ in (layout.height_bytes, layout.bound_bytes)]
          for layout in layouts]
    return sum(height for height, _ in up), sum(bound for _, bound in up)
