# SPDX-License-Identifier: Apache-2.0
"""Where most memory of a trace is live, and from which call sites."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stowage.snapshots.frames import CallSites
from stowage.snapshots.trace import Block, Trace

Row = dict[str, Any]


@dataclass
class Peak:
    """The first moment at which most is live: freed blocks that other streams may still use count as live.

    Its bytes are those that were asked for; `rounded_bytes` what the allocator makes of each.
    """

    event: int | None  # None: before the first event
    live_bytes: int
    rounded_bytes: int
    awaiting_bytes: int  # freed, but other streams may still use it
    before_bytes: int  # from before the first event
    reserved_bytes: int | None
    blocks: list[Block] = field(repr=False)


def find_peak(trace: Trace) -> Peak:
    live_bytes = most_bytes = sum(block.size_bytes for block in trace.before)
    at = None
    for event, block in trace.changes:
        if block.first == event:
            live_bytes += block.size_bytes
            if live_bytes > most_bytes:
                most_bytes, at = live_bytes, event
        else:
            live_bytes -= block.size_bytes
    blocks = live_at(trace, at)
    return Peak(
        at, most_bytes, sum(block.rounded_bytes for block in blocks),
        sum(block.size_bytes for block in blocks
            if at is not None and block.requested_end is not None and block.requested_end <= at),
        sum(block.size_bytes for block in blocks if block.first is None), trace.reserved_at(at), blocks)


def live_at(trace: Trace, event: int | None) -> list[Block]:
    """The blocks live once the event has happened."""
    if event is None:
        return trace.before
    return [block for block in trace.blocks
            if (block.first is None or block.first <= event) and (block.end is None or block.end > event)]


def call_sites(trace: Trace, depth: int = 1) -> list[Row]:
    """What is live at the trace's peak by call site, most bytes first; the sum is the peak exactly.

    Blocks from before the first event whose stack no one recorded are one row.
    """
    return by_call_site(find_peak(trace).blocks, CallSites(depth))


def by_call_site(blocks: Iterable[Block], names: CallSites) -> list[Row]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for block in blocks:
        row = sums[names.of_block(block)]
        row[0] += block.size_bytes
        row[1] += 1
    return [{"call_site": site, "size_bytes": size_bytes, "blocks": count}
            for site, (size_bytes, count) in sorted(sums.items(), key=lambda each: (-each[1][0], each[0]))]


def compare(before: list[Row], after: list[Row]) -> list[Row]:
    """Two lists by call site side by side, the biggest change first; equal ones too."""
    sizes = [{row["call_site"]: row["size_bytes"] for row in rows} for rows in (before, after)]
    rows = [{"call_site": site, "before_bytes": sizes[0].get(site, 0), "after_bytes": sizes[1].get(site, 0)}
            for site in sorted({*sizes[0], *sizes[1]})]
    for row in rows:
        row["change_bytes"] = row["after_bytes"] - row["before_bytes"]
    return sorted(rows, key=lambda row: (-abs(row["change_bytes"]), row["call_site"]))
