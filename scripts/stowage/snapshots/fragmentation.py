# SPDX-License-Identifier: Apache-2.0
"""What an allocator holds and does not use, and which blocks keep it from giving it back."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from stowage.snapshots.frames import CallSites
from stowage.snapshots.trace import MIB, Segment

Row = dict[str, Any]
#: Expandable segments are given back by whole pages.
_PAGE_BYTES = {"small": 2 * MIB, "large": 20 * MIB}


def pools(segments: Sequence[Segment]) -> list[Row]:
    """A row for each stream and pool: a block of one is never used for another."""
    groups: dict[tuple[int, str], list[Segment]] = defaultdict(list)
    for segment in segments:
        groups[segment.stream, segment.pool].append(segment)
    return [{"stream": stream, "pool": pool, "segments": len(group), **totals(group)}
            for (stream, pool), group in sorted(groups.items())]


def totals(segments: Sequence[Segment]) -> Row:
    """`free_bytes` are reserved and not in use: what can be given back (`releasable_bytes`) and what live blocks pin."""
    sums = {"allocated": 0, "awaiting": 0, "free": 0}
    requested_bytes = largest_bytes = releasable_bytes = 0
    for segment in segments:
        for part in segment.parts:
            sums[part.state] += part.size_bytes
            if part.state == "free":
                largest_bytes = max(largest_bytes, part.size_bytes)
            else:
                requested_bytes += part.block.size_bytes
        releasable_bytes += _releasable_bytes(segment)
    return {
        "reserved_bytes": sum(segment.size_bytes for segment in segments),
        "allocated_bytes": sums["allocated"],
        "awaiting_bytes": sums["awaiting"],
        "requested_bytes": requested_bytes,
        "free_bytes": sums["free"],
        "releasable_bytes": releasable_bytes,
        "pinned_bytes": sums["free"] - releasable_bytes,
        "largest_free_bytes": largest_bytes,
    }


def pins(segments: Sequence[Segment], names: CallSites) -> list[Row]:
    """Segments that live blocks keep, with the free bytes in them: most pinned bytes first."""
    rows = []
    for segment in segments:
        free = [part.size_bytes for part in segment.parts if part.state == "free"]
        live = [part for part in segment.parts if part.state != "free"]
        pinned_bytes = sum(free) - _releasable_bytes(segment)
        if not live or pinned_bytes <= 0:
            continue
        sites: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for part in live:
            site = sites[names.of_block(part.block)]
            site[0] += part.size_bytes
            site[1] += 1
        rows.append({
            "address": segment.address, "stream": segment.stream, "pool": segment.pool,
            "segment_bytes": segment.size_bytes, "pinned_bytes": pinned_bytes, "largest_free_bytes": max(free),
            "live_bytes": sum(part.size_bytes for part in live),
            "held_by": [{"call_site": site, "size_bytes": size_bytes, "blocks": count}
                        for site, (size_bytes, count) in sorted(sites.items(), key=lambda each: (-each[1][0], each[0]))],
        })
    return sorted(rows, key=lambda row: (-row["pinned_bytes"], row["address"]))


def _releasable_bytes(segment: Segment) -> int:
    """What the allocator can give back to the driver without moving a block."""
    if all(part.state == "free" for part in segment.parts):
        return sum(part.size_bytes for part in segment.parts)
    if not segment.expandable:
        return 0
    page = _PAGE_BYTES["small" if segment.pool.startswith("small") else "large"]
    bytes_ = 0
    for part in segment.parts:
        if part.state == "free":
            begin = -(-(part.address - segment.address) // page) * page
            end = (part.address + part.size_bytes - segment.address) // page * page
            bytes_ += max(0, end - begin)
    return bytes_
