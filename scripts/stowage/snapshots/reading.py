# SPDX-License-Identifier: Apache-2.0
"""Makes traces of a snapshot: of what `torch.cuda.memory._snapshot()` returns, as torch 2.0 and later write it."""

from typing import Any

from stowage.snapshots.pickles import SnapshotError, bounded_memory, load, without_collector
from stowage.snapshots.trace import Block, OutOfMemory, Part, Segment, Trace

_STATES = {"active_allocated": "allocated", "active_awaiting_free": "awaiting", "active_pending_free": "awaiting",
           "inactive": "free"}
#: How an event changes what is reserved.
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
#: Multiples of this are lengths of a history that somebody may have chosen as `max_entries`.
_LEAST_ROUND = 1000


#: Numbers are far below this. (Python takes time to print those of thousands of digits, or refuses.)
_LIMIT = 1 << 128


class _Unfit(Exception):
    """A part of the snapshot is not as torch writes it."""


def read_snapshot(path: str, max_entries: int | None = None) -> list[Trace]:
    """The devices that have segments or a history. `max_entries` is what `_record_memory_history` was given."""
    try:
        with without_collector(), bounded_memory(path):
            return _traces(load(path), max_entries)
    except _Unfit as error:
        raise SnapshotError(f"cannot read snapshot '{path}': {error}; choose a file of "
                            "torch.cuda.memory._dump_snapshot") from error


def _traces(snapshot: Any, max_entries: int | None) -> list[Trace]:
    if not isinstance(snapshot, dict):
        raise _Unfit(f"it holds a {type(snapshot).__name__}, no snapshot")
    histories = _list(snapshot, "device_traces", "the snapshot") if "device_traces" in snapshot else []
    rows = _list(snapshot, "segments", "the snapshot")
    # Lists that are there many times would make a small file endless work.
    for shared in (histories, [row.get("blocks") for row in rows if isinstance(row, dict)]):
        if len({id(each) for each in shared if each}) < sum(1 for each in shared if each):
            raise _Unfit("it holds one list in two places where torch has two lists")
    segments: dict[int, list[Segment]] = {}
    for number, row in enumerate(rows):
        device, segment = _segment(row, f"segment {number}")
        segments.setdefault(device, []).append(segment)
    devices = sorted({*segments, *(device for device, history in enumerate(histories) if history)})
    if not devices:
        raise _Unfit("no device has memory or a history in it")
    found = [_trace(device, histories[device] if device < len(histories) else [], segments.get(device, []), max_entries)
             for device in devices]
    settings = snapshot.get("allocator_settings")
    for trace in found:
        trace.notes += _settings_notes(settings if isinstance(settings, dict) else {})
    return found


def _settings_notes(settings: dict[Any, Any]) -> list[str]:
    named = [name for name, default in (("max_split_size", -1), ("garbage_collection_threshold", 0.0))
             if isinstance(settings.get(name), (int, float)) and settings[name] not in (default, 0)]
    powers = settings.get("roundup_power2_divisions")
    if isinstance(powers, dict) and any(powers.values()):
        named.append("roundup_power2_divisions")
    return [f"the allocator ran with {', '.join(named)}, which the replay leaves out"] if named else []


def _segment(row: Any, where: str) -> tuple[int, Segment]:
    at = address = _integer(row, "address", where)
    stream = _integer(row, "stream", where, 0)
    parts = []
    for number, block in enumerate(_list(row, "blocks", where)):
        inside = f"block {number} of {where}"
        state = _STATES.get(_text(block, "state", inside))
        if state is None:
            raise _Unfit(f"{inside} has the unknown state {block['state']!r:.40}")
        size_bytes = _integer(block, "size", inside)
        part = Part(_integer(block, "address", inside, at), size_bytes, state)
        if state != "free":
            requested_bytes = _integer(block, "requested_size", inside, 0) or size_bytes
            part.block = Block(part.address, requested_bytes, stream, None, None, block.get("frames"))
        parts.append(part)
        at += size_bytes
    kind = row.get("segment_type")
    pool_id = row.get("segment_pool_id")
    private = isinstance(pool_id, (tuple, list)) and all(type(number) is int for number in pool_id) and any(pool_id)
    pool = f"{kind if kind == 'small' else 'large'}{f' of pool {pool_id[0]}.{pool_id[-1]}' if private else ''}"
    segment = Segment(address, _integer(row, "total_size", where), stream, pool, parts,
                      row.get("is_expandable") is True)
    return _integer(row, "device", where, 0), segment


def _trace(device: int, history: Any, segments: list[Segment], max_entries: int | None) -> Trace:
    if not isinstance(history, list):
        raise _Unfit(f"the history of device {device} is a {type(history).__name__}, no list")
    trace = Trace(device, len(history), [], segments=segments)
    live: dict[int, Block] = {}
    early: list[Block] = []
    gaps = 0
    # Where no freeing was completed, it was left out of the history, or all of it still waits for other streams.
    free = "free_completed" if any(_action(event) == "free_completed" for event in history) else "free_requested"
    awaiting = {part.address for segment in segments for part in segment.parts if part.state == "awaiting"}
    number = 0
    try:
        for number, event in enumerate(history):
            action = event["action"]
            if action == "alloc":
                address, size_bytes, stream = event["addr"], event["size"], event.get("stream", 0)
                if not _fits(address) or not _fits(size_bytes) or not _fits(stream):
                    raise TypeError
                if address in live:
                    live[address].end = number
                    gaps += 1
                live[address] = Block(address, size_bytes, stream, number, None, event.get("frames"))
                trace.blocks.append(live[address])
            elif action == free or action == "free_requested":
                address = event["addr"]
                block = live.get(address)
                if block is None:
                    block = Block(address, event["size"], event.get("stream", 0), None)
                    if not _fits(address) or not _fits(block.size_bytes) or not _fits(block.stream):
                        raise TypeError
                    live[address] = block
                    early.append(block)
                if action == "free_requested":
                    block.requested_end = number
                if action == free and not (action == "free_requested" and address in awaiting):
                    block.end = number
                    del live[address]
            elif action in _RESERVES:
                trace.reserved_changes.append((number, _RESERVES[action] * _integer(event, "size", "an event")))
            elif action == "oom":
                free_bytes = event.get("device_free")
                trace.ran_out.append(OutOfMemory(number, _integer(event, "size", "an event"),
                                                 free_bytes if type(free_bytes) is int else None))
    except (KeyError, TypeError, AttributeError, _Unfit) as error:
        raise _Unfit(f"event {number} of device {device} is not as torch writes it") from error
    if any(block.end is not None and block.end == block.requested_end for block in (*early, *trace.blocks)):
        trace.notes.append("the history tells when freeing was asked for only, not when it was done")
    if gaps:
        trace.notes.append(f"{gaps} allocations lie where others were not freed: events are missing")
    _add_the_unseen(trace, live, early, max_entries)
    return trace


def _add_the_unseen(trace: Trace, live: dict[int, Block], early: list[Block], max_entries: int | None) -> None:
    """Adds the blocks of which the history has no beginning, what is reserved, and whether the history is whole."""
    lost = 0
    vanished = len(live)
    for segment in trace.segments:
        for part in segment.parts:
            if part.block is None:
                continue
            if part.address in live:
                part.block = live[part.address]
                vanished -= 1
            else:
                early.append(part.block)
                lost += bool(part.block.frames)
    if vanished > 0 and trace.segments:
        trace.notes.append(f"{vanished} blocks live at the end of the history are in no segment: events are missing")
    trace.blocks[:0] = sorted(early, key=lambda block: block.address)
    trace.reserved_bytes = sum(segment.size_bytes for segment in trace.segments)
    if trace.reserved_at(None) < 0:
        trace.reserved_bytes = None
        trace.notes.append("the history takes more segments than are there: what was reserved is not known")
    trace.truncated = _why_truncated(trace.end, lost, max_entries)


def _why_truncated(events: int, lost: int, max_entries: int | None) -> str | None:
    if max_entries is not None and events >= max_entries:
        return f"the history is full: {events} events, max_entries={max_entries}; earlier ones are lost"
    if lost and events:
        return (f"the history is cut: {lost} live blocks have a call stack but no event; max_entries was too small, or the "
                "history was cleared")
    if events >= _LEAST_ROUND and events % _LEAST_ROUND == 0:
        return (f"the history may be full: it has exactly {events} events; if max_entries was that, earlier ones are lost "
                "(say so with --max-entries)")
    return None


def _action(event: Any) -> Any:
    return event.get("action") if isinstance(event, dict) else None


def _list(row: Any, name: str, where: str) -> list[Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, list):
        raise _Unfit(f"{where} has no list '{name}'")
    return value


def _text(row: Any, name: str, where: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str):
        raise _Unfit(f"{where} has no text '{name}'")
    return value


def _fits(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LIMIT


def _integer(row: Any, name: str, where: str, default: int | None = None) -> int:
    value = row.get(name, default) if isinstance(row, dict) else None
    if not _fits(value):
        raise _Unfit(f"{where} has no number '{name}'")
    return value
