# SPDX-License-Identifier: Apache-2.0
"""What a device's allocator did: blocks over time, and the segments that they lay in at the end."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from stowage.snapshots.frames import NO_STACK

MIB = 1 << 20
#: The allocator's blocks are multiples of this.
UNIT_BYTES = 512


@dataclass(slots=True)
class Block:
    """Memory that a program asked for. `first` and `end` number the trace's events, half-open."""

    address: int
    size_bytes: int  # as asked for
    stream: int
    first: int | None  # None: before the first event
    end: int | None = None  # None: after the last event
    frames: Any = None  # its call stack, innermost first, or in a trace from a CSV file its name
    requested_end: int | None = None  # when its freeing was asked for, which may wait for other streams

    @property
    def rounded_bytes(self) -> int:
        return rounded(self.size_bytes)


@dataclass(slots=True)
class Part:
    """A piece of a segment. `state` is "allocated", "awaiting" (other streams may still use it) or "free"."""

    address: int
    size_bytes: int
    state: str
    block: Block | None = None  # what is live there


@dataclass(slots=True)
class Segment:
    """What the allocator took from the driver at one time, or of an expandable one, a run of mapped pages."""

    address: int
    size_bytes: int
    stream: int
    pool: str  # "small" or "large", with the id of a private pool
    parts: list[Part]
    expandable: bool = False


@dataclass(slots=True)
class OutOfMemory:
    """A request that failed, as the trace tells."""

    event: int
    size_bytes: int
    device_free_bytes: int | None


@dataclass
class Trace:
    """One device's history, or a slice of it: events [first, end)."""

    device: int
    end: int
    blocks: list[Block]  # those from before the first event by address, then in order of their allocation
    first: int = 0
    segments: list[Segment] | None = None  # at the end; None where that is not known
    reserved_bytes: int | None = None  # at the end
    reserved_changes: list[tuple[int, int]] = field(default_factory=list)  # event, bytes
    ran_out: list[OutOfMemory] = field(default_factory=list)
    truncated: str | None = None  # why the first events must or may be missing
    notes: list[str] = field(default_factory=list)

    @property
    def before(self) -> list[Block]:
        """What was live before the first event."""
        return [block for block in self.blocks if block.first is None]

    @cached_property
    def changes(self) -> list[tuple[int, Block]]:
        """Events that begin or end a block, in order: it begins where `block.first` is the event."""
        found = [(block.end, block) for block in self.blocks if block.end is not None]
        found += [(block.first, block) for block in self.blocks if block.first is not None]
        return sorted(found, key=lambda change: change[0])

    def reserved_at(self, event: int | None) -> int | None:
        """Bytes that the allocator holds after the event, or before the first."""
        if self.reserved_bytes is None:
            return None
        later = bisect_left(self.reserved_changes, (self.first if event is None else event + 1,))
        return self.reserved_bytes - self._changed_from[later]

    @cached_property
    def _changed_from(self) -> list[int]:
        """By index into `reserved_changes`: how much it and all later ones change."""
        sums = accumulate((change for _, change in reversed(self.reserved_changes)), initial=0)
        return list(sums)[::-1]

    def most_reserved(self) -> int | None:
        if self.reserved_bytes is None:
            return None
        held = most = self.reserved_at(None)
        for _, change in self.reserved_changes:
            held += change
            most = max(most, held)
        return most

    def part(self, first: int | None, end: int | None) -> "Trace":
        """Its events [first, end); what was live before them counts as from before."""
        first = max(first or 0, self.first)
        end = self.end if end is None else min(end, self.end)
        if (first, end) == (self.first, self.end):
            return self
        blocks = sorted(self._blocks_of(first, end), key=lambda block: (block.first is not None, block.first or 0))
        later = sum(change for at, change in self.reserved_changes if at >= end)
        return replace(
            self, first=first, end=end, blocks=blocks, segments=self.segments if end == self.end else None,
            reserved_bytes=None if self.reserved_bytes is None else self.reserved_bytes - later,
            reserved_changes=[change for change in self.reserved_changes if first <= change[0] < end],
            ran_out=[failure for failure in self.ran_out if first <= failure.event < end])

    def _blocks_of(self, first: int, end: int) -> Iterator[Block]:
        for block in self.blocks:
            if (block.first or 0) < end and (block.end is None or block.end >= first):
                begins = block.first is not None and block.first >= first
                ends = block.end is not None and block.end < end
                # One that an earlier event began is not from before recording, even without a stack.
                frames = block.frames if begins or block.first is None else block.frames or NO_STACK
                yield replace(block, first=block.first if begins else None, end=block.end if ends else None, frames=frames)


def rounded(size_bytes: int) -> int:
    """What the allocator makes of a request."""
    return max(UNIT_BYTES, -(-size_bytes // UNIT_BYTES) * UNIT_BYTES)
