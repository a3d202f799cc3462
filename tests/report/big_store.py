# SPDX-License-Identifier: Apache-2.0
"""Writes a store of a planned step of any number of ops: python tests/report/big_store.py STORE [OPS]

The forward makes an activation an op, the backward frees them in turn; every fifth op has a workspace. The plan swaps the
first two ops of the backward and stacks the activations.
"""

import random
import sqlite3
import sys
from pathlib import Path

SCHEMA = (Path(__file__).resolve().parents[2] / "profiler" / "schema.sql").read_text()
WEIGHTS = 100


def write(path: Path, op_count: int = 50_000) -> None:
    rng = random.Random(op_count)
    half = op_count // 2
    sizes = [64 * rng.randint(16, 4096) for _ in range(half)]
    tensors = [(weight, f"p_layer{weight}_weight", "input", 1 << 20) for weight in range(WEIGHTS)]
    tensors += [(WEIGHTS + op, f"relu_{op}", "intermediate", sizes[op]) for op in range(half)]
    ops = [(op, f"relu_{op}", "aten::relu", f"layer{op * WEIGHTS // half}.act", f"net.py:{op % 400}") for op in range(half)]
    ops += [(half + op, f"backward_{op}", "aten::threshold_backward", f"layer{(half - 1 - op) * WEIGHTS // half}.act", "")
            for op in range(half)]
    offsets = [0]
    for size_bytes in sizes:
        offsets.append(offsets[-1] + size_bytes)
    arena_bytes = offsets[-1] + (1 << 20)

    uses, allocations, slots, points = [], [], [], []
    event = 0
    for op in range(half):
        tensor = WEIGHTS + op
        allocations.append([tensor, op, 0, sizes[op], event, 2 * half - 1 - op, None])
        slots.append((tensor, offsets[op], sizes[op]))
        points.append(("place", op, tensor))
        uses += [(op, op % WEIGHTS, "read"), (op, tensor, "result"), (2 * half - 1 - op, tensor, "read")]
        event += 1
        if op % 5 == 0:
            workspace = len(tensors)
            tensors.append((workspace, f"relu_{op}/1", "workspace", 4096))
            allocations.append([workspace, op, 1, 4096, event, op, event + 1])
            slots.append((workspace, arena_bytes - 4096, 4096))
            points.append(("place", op, workspace))
            event += 2
    of_activation = {row[0]: row for row in allocations}
    for op in range(half):
        tensor = WEIGHTS + half - 1 - op
        of_activation[tensor][6] = event + op
        points.append(("free", half + op, tensor))
    order = list(range(2 * half))
    order[half:half + 2] = order[half:half + 2][::-1]
    # Highest at the end of the forward, in the workspace of its last op if that has one.
    peak_bytes = (WEIGHTS << 20) + sum(sizes) + (4096 if (half - 1) % 5 == 0 else 0)

    connection = sqlite3.connect(path)
    connection.executescript(f"BEGIN; {SCHEMA}")
    insert(connection, "runs", [(1, "big", "b1", "()", "cpu", "2.11.0", "0.1.0", "steady_clock", 1_700_000_000_000_000_000, 2,
                                 0, 1, 50, peak_bytes, "graph()", "2", 64, 0, "graph")])
    insert(connection, "ops", [(1, *op, 1000 * op[0], 900, 0, None) for op in ops])
    insert(connection, "tensors", [(1, *tensor, "Float", "[]") for tensor in tensors])
    insert(connection, "uses", [(1, use, *row, 0 if row[2] == "result" else None) for use, row in enumerate(uses)])
    insert(connection, "allocations", [
        (1, number, tensor, op, index, size_bytes, size_bytes, 0, begin, free_op, end, "allocator", 0)
        for number, (tensor, op, index, size_bytes, begin, free_op, end) in enumerate(allocations)])
    insert(connection, "plans", [(1, peak_bytes, peak_bytes, peak_bytes, "optimal", arena_bytes, arena_bytes, "optimal", 1, "",
                                  0)])
    insert(connection, "plan_order", [(1, step, op) for step, op in enumerate(order)])
    insert(connection, "slots", [(1, slot, *row, None) for slot, row in enumerate(slots)])
    insert(connection, "points", [(1, point, *row, None) for point, row in enumerate(points)])
    connection.commit()
    connection.close()


def insert(connection: sqlite3.Connection, table: str, rows: list[tuple]) -> None:
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
