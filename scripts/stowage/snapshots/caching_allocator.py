# SPDX-License-Identifier: Apache-2.0
"""Simulates torch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp of torch 2.11) on one device.

Small requests, of up to 1 MiB, are cut from segments of 2 MiB; larger ones from segments of 20 MiB, or of their own size
in steps of 2 MiB from 10 MiB on. A request takes the smallest free block of its stream and pool that fits; the rest of
the block stays free if it is worth keeping. With expandable segments there is one for each stream and pool, mapped page
by page. Left out: max_split_size, garbage collection, private pools, and blocks that await other streams.
"""

import bisect
from collections.abc import Iterator

from stowage.snapshots.trace import MIB, UNIT_BYTES, Block, Part, Segment

_SMALL_BYTES = 1 * MIB  # the most that a small request asks for
_OWN_SEGMENT_BYTES = 10 * MIB  # what asks for this much gets a segment of its own size
_SMALL_SEGMENT_BYTES, _LARGE_SEGMENT_BYTES, _STEP_BYTES = 2 * MIB, 20 * MIB, 2 * MIB
_ENDLESS_BYTES = 1 << 160  # whatever sizes a file may claim
#: Addresses of an expandable segment. Torch takes 9/8 of the device's memory, which is more than a program can use of it.
_EXPANDABLE_BYTES = 1 << 160


class NoMemory(Exception):
    """The device has not what a request needs, after all free segments were given back."""


class Piece:
    """A run of a segment; free ones next to one another are merged."""

    __slots__ = ("address", "size_bytes", "pool", "base", "previous", "next", "live", "mapped", "block")

    def __init__(self, address: int, size_bytes: int, pool: "_Pool", base: int, mapped: bool = True) -> None:
        self.address, self.size_bytes, self.pool, self.base, self.mapped = address, size_bytes, pool, base, mapped
        self.previous: Piece | None = None
        self.next: Piece | None = None
        self.live = False
        self.block: Block | None = None

    @property
    def whole(self) -> bool:
        return self.previous is None and self.next is None


class _Pool:
    """The free pieces of one stream and kind by size, and of an expandable segment the unmapped ones by address."""

    def __init__(self, stream: int, small: bool) -> None:
        self.stream, self.small = stream, small
        self.free: list[tuple[int, int, Piece]] = []
        self.unmapped: list[tuple[int, Piece]] = []
        self.page_bytes = _SMALL_SEGMENT_BYTES if small else _LARGE_SEGMENT_BYTES

    def add(self, piece: Piece) -> None:
        if piece.mapped:
            bisect.insort(self.free, (piece.size_bytes, piece.address, piece))
        else:
            bisect.insort(self.unmapped, (piece.address, piece))

    def remove(self, piece: Piece) -> None:
        if piece.mapped:
            del self.free[bisect.bisect_left(self.free, (piece.size_bytes, piece.address))]
        else:
            del self.unmapped[bisect.bisect_left(self.unmapped, (piece.address,))]


class CachingAllocator:
    """Without `capacity_bytes`, a device that never runs out."""

    def __init__(self, capacity_bytes: int | None = None, expandable: bool = False) -> None:
        self.reserved_bytes = 0
        self.most_reserved_bytes = 0
        self._capacity_bytes = _ENDLESS_BYTES if capacity_bytes is None else capacity_bytes
        self._expandable = expandable
        self._pools: dict[tuple[bool, int], _Pool] = {}
        self._gaps = [(0, 1 << 200)]  # addresses that no segment has: begin and end, in order
        self._firsts: dict[int, Piece] = {}  # by its segment's address

    def allocate(self, block: Block) -> Piece:
        """A place for what the block asks for on its stream, or raises NoMemory."""
        size_bytes, stream = block.rounded_bytes, block.stream
        small = size_bytes <= _SMALL_BYTES
        pool = self._pools.get((small, stream))
        if pool is None:
            pool = self._pools[small, stream] = _Pool(stream, small)
        piece = self._take_free(pool, size_bytes)
        if piece is None:
            piece = self._take_new(pool, size_bytes)
        if piece is None:
            self.empty_cache()
            piece = self._take_new(pool, size_bytes)
        if piece is None:
            raise NoMemory
        rest_bytes = piece.size_bytes - size_bytes
        if rest_bytes >= UNIT_BYTES if small or self._expandable else rest_bytes > _SMALL_BYTES:
            self._cut(piece, size_bytes)
            pool.add(piece.next)
        piece.live, piece.block = True, block
        return piece

    def free(self, piece: Piece) -> None:
        piece.live, piece.block = False, None
        self._merge(piece)
        piece.pool.add(piece)

    def empty_cache(self) -> None:
        """Gives back the segments, or of expandable ones the pages, that are free as a whole."""
        for small in (False, True):
            for pool in [pool for (kind, _), pool in self._pools.items() if kind == small]:
                for _, _, piece in list(pool.free):
                    if self._expandable:
                        self._unmap(piece)
                    elif piece.whole:
                        pool.remove(piece)
                        self._reserve(-piece.size_bytes)
                        self._give_back(piece.base, piece.size_bytes)

    def segments(self) -> list[Segment]:
        """What is reserved, by address."""
        found: list[Segment] = []
        for base in sorted(self._firsts):
            run: list[Piece] = []
            for piece in (*_pieces(self._firsts[base]), None):
                if piece is not None and piece.mapped:
                    run.append(piece)
                elif run:
                    found.append(_segment(run, self._expandable))
                    run = []
        return found

    def _take_free(self, pool: _Pool, size_bytes: int) -> Piece | None:
        free = pool.free
        at = bisect.bisect_left(free, (size_bytes,))
        if at == len(free):
            return None
        if self._expandable:
            # One that can grow counts with what it can grow to, so that another may be the better fit.
            while at + 1 < len(free) and _room_bytes(free[at + 1][2]) < _room_bytes(free[at][2]):
                at += 1
        return free.pop(at)[2]

    def _take_new(self, pool: _Pool, size_bytes: int) -> Piece | None:
        if self._expandable:
            return self._grow(pool, size_bytes)
        segment_bytes = size_bytes
        if pool.small:
            segment_bytes = _SMALL_SEGMENT_BYTES
        elif size_bytes < _OWN_SEGMENT_BYTES:
            segment_bytes = _LARGE_SEGMENT_BYTES
        segment_bytes = _up(segment_bytes, _STEP_BYTES)
        if not self._reserve(segment_bytes):
            return None
        base = self._find_addresses(segment_bytes)
        piece = self._firsts[base] = Piece(base, segment_bytes, pool, base)
        return piece

    def _grow(self, pool: _Pool, size_bytes: int) -> Piece | None:
        piece = self._growable(pool, size_bytes)
        if not piece.mapped and not self._map(piece, size_bytes):
            return None
        while piece.size_bytes < size_bytes:
            more = piece.next
            if not self._map(more, size_bytes - piece.size_bytes):
                return None
            piece = more
        pool.remove(piece)
        return piece

    def _growable(self, pool: _Pool, size_bytes: int) -> Piece:
        """The first run of free and unmapped pieces with that much room."""
        for _, piece in pool.unmapped:
            if piece.previous is not None and not piece.previous.live:
                piece = piece.previous
            room_bytes, each = 0, piece
            while each is not None and not each.live and room_bytes < size_bytes:
                room_bytes, each = room_bytes + each.size_bytes, each.next
            if room_bytes >= size_bytes:
                return piece
        segment_bytes = _up(_EXPANDABLE_BYTES, pool.page_bytes)
        base = self._find_addresses(segment_bytes)
        piece = self._firsts[base] = Piece(base, segment_bytes, pool, base, mapped=False)
        pool.add(piece)
        return piece

    def _map(self, piece: Piece, size_bytes: int) -> bool:
        """Maps as many whole pages as that takes, from the piece's beginning."""
        mapped_bytes = min(piece.size_bytes, _up(size_bytes, piece.pool.page_bytes))
        if not self._reserve(mapped_bytes):
            return False
        piece.pool.remove(piece)
        if mapped_bytes < piece.size_bytes:
            self._cut(piece, mapped_bytes)
            piece.pool.add(piece.next)
        piece.mapped = True
        self._merge(piece)
        piece.pool.add(piece)
        return True

    def _unmap(self, piece: Piece) -> None:
        page_bytes = piece.pool.page_bytes
        begin = piece.base + _up(piece.address - piece.base, page_bytes)
        end = piece.base + (piece.address + piece.size_bytes - piece.base) // page_bytes * page_bytes
        if begin >= end:
            return
        piece.pool.remove(piece)
        if begin > piece.address:
            self._cut(piece, begin - piece.address)
            piece.pool.add(piece)
            piece = piece.next
        if piece.address + piece.size_bytes > end:
            self._cut(piece, end - begin)
            piece.pool.add(piece.next)
        piece.mapped = False
        self._reserve(begin - end)
        self._merge(piece)
        if piece.whole:
            self._give_back(piece.base, piece.size_bytes)
        else:
            piece.pool.add(piece)

    def _cut(self, piece: Piece, size_bytes: int) -> None:
        """Makes it so long; what is left becomes the next piece, in no list yet."""
        rest = Piece(piece.address + size_bytes, piece.size_bytes - size_bytes, piece.pool, piece.base, piece.mapped)
        rest.previous, rest.next = piece, piece.next
        if rest.next is not None:
            rest.next.previous = rest
        piece.next, piece.size_bytes = rest, size_bytes

    def _merge(self, piece: Piece) -> None:
        """Takes in its free neighbours; it is in no list itself."""
        for other in (piece.previous, piece.next):
            if other is None or other.live or other.mapped != piece.mapped:
                continue
            other.pool.remove(other)
            piece.size_bytes += other.size_bytes
            if other is piece.previous:
                piece.address, piece.previous = other.address, other.previous
                if piece.previous is None:
                    self._firsts[piece.base] = piece
                else:
                    piece.previous.next = piece
            else:
                piece.next = other.next
                if piece.next is not None:
                    piece.next.previous = piece

    def _reserve(self, size_bytes: int) -> bool:
        if self.reserved_bytes + size_bytes > self._capacity_bytes:
            return False
        self.reserved_bytes += size_bytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)
        return True

    def _find_addresses(self, size_bytes: int) -> int:
        """The lowest that fit."""
        at = next(at for at, (begin, end) in enumerate(self._gaps) if end - begin >= size_bytes)
        begin, end = self._gaps.pop(at)
        if end - begin > size_bytes:
            self._gaps.insert(at, (begin + size_bytes, end))
        return begin

    def _give_back(self, base: int, size_bytes: int) -> None:
        del self._firsts[base]
        begin, end = base, base + size_bytes
        at = bisect.bisect_left(self._gaps, (begin, end))
        if at < len(self._gaps) and self._gaps[at][0] == end:
            end = self._gaps.pop(at)[1]
        if at > 0 and self._gaps[at - 1][1] == begin:
            begin = self._gaps.pop(at - 1)[0]
            at -= 1
        self._gaps.insert(at, (begin, end))


def _up(size_bytes: int, step_bytes: int) -> int:
    return -(-size_bytes // step_bytes) * step_bytes


def _room_bytes(piece: Piece) -> int:
    following = piece.next
    return piece.size_bytes + (following.size_bytes if following is not None and not following.mapped else 0)


def _pieces(first: Piece | None) -> Iterator[Piece]:
    while first is not None:
        yield first
        first = first.next


def _segment(run: list[Piece], expandable: bool) -> Segment:
    pool = run[0].pool
    parts = [Part(piece.address, piece.size_bytes, "allocated" if piece.live else "free", piece.block)
             for piece in run]
    return Segment(run[0].address, sum(part.size_bytes for part in parts), pool.stream, "small" if pool.small else "large",
                   parts, expandable)
