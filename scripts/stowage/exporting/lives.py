# SPDX-License-Identifier: Apache-2.0
"""What lives when in a run, as it was recorded or as it is planned: the same for every format of export. Needs no torch.

Beyond the live bytes of a `Curve` each allocation is a block of its own, with an address and times, as viewers want it.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from stowage.store import DAMAGED, HELD_KINDS, Row, Store, StoreError


def round_up(size_bytes: int, alignment_bytes: int) -> int:
    return -(-size_bytes // alignment_bytes) * alignment_bytes


@dataclass(eq=False)
class Block:
    """Memory of one tensor from one allocation to its free, in changes: `[begin, end)`."""

    tensor: int
    name: str
    kind: str
    size_bytes: int
    stream: int
    op: int | None  # that allocates it; None: it is there from the start, and `begin` is 0
    begin: int
    offset_bytes: int | None = None  # in the arena; None: it has no slot
    end: int | None = None  # None: it is there at the end
    carried: bool = False  # one step of a loop allocates it, the next frees it

    @property
    def needs_place(self) -> bool:
        """Whether an arena would hold it: neither the caller's nor handed to the caller."""
        return self.size_bytes > 0 and (self.carried or self.kind not in (*HELD_KINDS, "output"))


@dataclass
class Change:
    """An allocation or a free. Changes have no times of their own: those of an op are spread evenly over its time."""

    block: Block
    op: int
    is_free: bool
    live_bytes: int  # after it
    time_ns: int = 0


@dataclass
class Lives:
    run: Row
    planned: bool
    ops: list[Row]  # in the order in which they run; `start_ns` is as measured, or as durations in planned order add up
    blocks: list[Block] = field(default_factory=list)  # as they begin
    changes: list[Change] = field(default_factory=list)  # the n-th of them is change n + 1
    start_bytes: int = 0

    @property
    def layout(self) -> list[Block]:
        """What an arena holds."""
        return [block for block in self.blocks if block.needs_place]

    @property
    def end_ns(self) -> int:
        return max((op["start_ns"] + op["duration_ns"] for op in self.ops), default=0)

    @property
    def peak(self) -> tuple[int, int]:
        """The most bytes that live at once, and when."""
        lives = [(self.start_bytes, 0), *((change.live_bytes, change.time_ns) for change in self.changes)]
        return max(lives, key=lambda live: live[0])


def read_lives(store: Store, run: Row, planned: bool) -> Lives:
    lives = Lives(run, planned, _ops(store, run, planned))
    slots = _slots(store, run) if planned else {}
    streams = {row["tensor"]: row["stream"] for row in
               store.query("SELECT tensor, stream FROM allocations WHERE run_id = ?", run["run_id"])}
    carried = {row["tensor"] for row in
               store.query("SELECT a.tensor FROM carried AS c JOIN allocations AS a ON a.run_id = c.run_id AND "
                           "a.allocation = c.allocation WHERE c.run_id = ?", run["run_id"])}
    tensors = {row["tensor"]: row for row in
               store.query("SELECT tensor, name, kind, size_bytes FROM tensors WHERE run_id = ?", run["run_id"])}
    live: dict[int, list[Block]] = defaultdict(list)

    def begin(tensor: int, size_bytes: int, op: int | None) -> Block:
        row = tensors[tensor]
        place, previous_place = slots.get(tensor, (None, None))
        block = Block(tensor, row["name"] or f"tensor {tensor}", row["kind"], size_bytes, streams.get(tensor, 0), op,
                      0 if op is None else len(lives.changes) + 1, previous_place if op is None else place,
                      carried=tensor in carried)
        lives.blocks.append(block)
        live[tensor].append(block)
        return block

    for tensor, row in tensors.items():
        if row["kind"] in HELD_KINDS or tensor in carried:  # what is carried, the step before has left
            lives.start_bytes += begin(tensor, row["size_bytes"], None).size_bytes
    for row in _events(store, run, planned):
        if row["what"] == "allocate":
            block, is_free = begin(row["tensor"], row["change_bytes"], row["op"]), False
        elif live[row["tensor"]]:
            block, is_free = live[row["tensor"]].pop(0), True
            block.end = len(lives.changes) + 1
        else:
            raise StoreError(f"cannot read run {run['run_id']} of store '{store.path}': tensor {row['tensor']} is freed "
                             f"by op {row['op']}, where it does not live; {DAMAGED}")
        lives.changes.append(Change(block, row["op"], is_free, row["live_bytes"]))
    _spread(lives)
    return lives


def _ops(store: Store, run: Row, planned: bool) -> list[Row]:
    ops = store.ops(run, planned)
    if planned:
        start_ns = 0
        for op in ops:
            op["start_ns"] = start_ns
            start_ns += op["duration_ns"]
    return ops


def _slots(store: Store, run: Row) -> dict[int, tuple[int, int]]:
    """Of each tensor with a slot its offset in this step and in the one before, in bytes."""
    rows = store.query("SELECT tensor, offset_bytes, coalesce(other_offset_bytes, offset_bytes) AS other_offset_bytes "
                       "FROM slots WHERE run_id = ?", run["run_id"])
    return {row["tensor"]: (row["offset_bytes"], row["other_offset_bytes"]) for row in rows}


def _events(store: Store, run: Row, planned: bool) -> list[Row]:
    # At one event, frees come first.
    return store.query(f"SELECT op, tensor, what, change_bytes, live_bytes FROM {'planned_' if planned else ''}timeline "
                       "WHERE run_id = ? AND event >= 0 ORDER BY event, change_bytes", run["run_id"])


def _spread(lives: Lives) -> None:
    of_op = defaultdict(list)
    for change in lives.changes:
        of_op[change.op].append(change)
    for op in lives.ops:
        changes = of_op[op["op"]]
        for number, change in enumerate(changes, 1):
            change.time_ns = op["start_ns"] + op["duration_ns"] * number // (len(changes) + 1)
