# SPDX-License-Identifier: Apache-2.0
"""A store of a step with many ops: a forward that keeps a tensor of each op, and the backward that frees them in turn."""

import sqlite3
from pathlib import Path

from cli.sample_store import SCHEMA

KIB = 1 << 10


def make_large_store(path: Path, op_count: int) -> int:
    """Writes the store, of an even number of ops; returns the step's peak in bytes, which planning does not move.

    Op k of the forward makes tensor k of 1 to 8 KiB, the backward's op for it the gradient of 1 KiB and frees both that and
    the gradient before. Every tenth op of the forward has a workspace of 2 KiB.
    """
    half = op_count // 2
    sizes = [(1 + op % 8) * KIB for op in range(half)]
    peak_bytes = 64 + sum(sizes) + KIB  # a parameter, all that the forward keeps, and the first gradient
    ops = [(1, op, f"op_{op}", "aten::linear" if op < half else "aten::linear_backward",
            f"blocks.{(op if op < half else op_count - 1 - op) // 50}", f"net.py:{op % 50 + 1}", op * 1000, 900, 1, None)
           for op in range(op_count)]
    tensors = [(1, 0, "p_weight", "input", 64, "Float", "[16]")]
    allocations, uses, order, slots, points = [], [], [], [], []
    event, offset = 0, 0

    def allocate(op: int, name: str, kind: str, size_bytes: int, index: int = 0) -> int:
        nonlocal event, offset
        tensor = len(tensors)
        tensors.append((1, tensor, name, kind, size_bytes, "Float", f"[{size_bytes // 4}]"))
        allocations.append([1, len(allocations), tensor, op, index, size_bytes, size_bytes, 0, event, None, None,
                            "allocator", 0])
        slots.append((1, len(slots), tensor, offset, size_bytes, None))
        points.append((1, len(points), "place", op, tensor, None))
        event, offset = event + 1, offset + size_bytes
        return tensor

    def free(op: int, tensor: int) -> None:
        nonlocal event
        allocations[tensor - 1][9:11] = op, event
        points.append((1, len(points), "free", op, tensor, None))
        event += 1

    made = []
    before = None
    for op in range(op_count):
        order.append((1, op, op))
        uses.append((1, len(uses), op, 0, "read", None))
        if op < half:
            made.append(allocate(op, f"op_{op}", "intermediate", sizes[op]))
            uses.append((1, len(uses), op, made[-1], "result", 0))
            if op % 10 == 0:
                workspace = allocate(op, f"op_{op}.workspace", "workspace", 2 * KIB, 1)
                allocations[workspace - 1][9:11] = op, event
                event += 1
            continue
        gradient = allocate(op, f"op_{op}", "intermediate", KIB)
        saved = made.pop()
        uses += [(1, len(uses), op, saved, "read", None), (1, len(uses) + 1, op, gradient, "result", 0)]
        free(op, saved)
        if before is not None:
            free(op, before)
        before = gradient
    free(op_count - 1, before)

    connection = sqlite3.connect(path)
    connection.executescript(f"BEGIN; {SCHEMA}")
    rows = {
        "runs": [(1, "large", "1a", "()", "cpu", "2.11.0", "0.1.0", "steady_clock", 1_700_000_000_000_000_000, 2, 0, 1,
                  op_count * 1000, peak_bytes, "graph()", "2", 64, 0, "graph")],
        "ops": ops, "tensors": tensors, "uses": uses, "allocations": allocations,
        "plans": [(1, peak_bytes, peak_bytes, peak_bytes, "optimal", offset, offset, "feasible", 1000, "graph()", 0)],
        "plan_order": order, "slots": slots, "points": points,
    }
    for table, values in rows.items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
    connection.commit()
    connection.close()
    return peak_bytes
