# SPDX-License-Identifier: Apache-2.0
"""A store made from schema.sql and literal rows."""

import random
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = (ROOT / "profiler" / "schema.sql").read_text()
MIB = 1 << 20

# The `stowage` fixture: runs the command line.
Stowage = Callable[..., subprocess.CompletedProcess[str]]


def shown_with(stowage: Stowage, *arguments: str, note: str) -> str:
    """What a command that succeeds prints, and `note` on stderr."""
    result = stowage(*arguments)
    assert (result.returncode, result.stderr) == (0, note)
    return result.stdout



# Run 2 is a step whose best order is not the program order: c should free the 4 MiB of a before the 8 MiB of b come.
#
#   op 0  a = matmul(x, w), with a workspace    op 3  d = sum(b), the last use of b
#   op 1  b = cat(x)                            op 4  loss = add(c, d), the last use of both
#   op 2  c = mean(a), the last use of a        op 5  w -= loss
#
# MiB live in program order: 3 | a 7, workspace 7.5, 7 | b 15 | c 16, free a 12 | d 13, free b 5 | free c 4, free d 3 |
# MiB live with op 2 first:  3 | a 7, workspace 7.5, 7 | c 8, free a 4 | b 12 | d 13, free b 5 | free c 4, free d 3 |
# and the constant's 4 B throughout, the loss's 4 B from op 4 on.
ROWS = {
    "runs": [
        (1, "eval", "e5", "()", "cpu", "2.11.0", "0.1.0", "steady_clock", 1_700_000_000_000_000_000, 1, 12, 0, 50, 64,
         "graph()", "2", 64, 0, "graph"),
        (2, "step", "57", "(Float[4])", "cpu", "2.11.0", "0.1.0", "steady_clock", 1_700_000_060_000_000_000, 2, 0, 1,
         5_000_000, 16 * MIB + 4, "graph(%x, %w)", "2", 64, 0, "graph"),
        (3, "step", "57", "(Float[8])", "cpu", "2.11.0", "0.1.0", "steady_clock", 1_700_000_120_000_000_000, 1, 0, 1,
         600, 64, "graph(%x, %w)", "2", 64, 0, "graph"),
    ],
    "ops": [
        (2, 0, "a", "aten::matmul", "net.fc", "net.py:7", 0, 2_000_000, 0, None),
        (2, 1, "b", "aten::cat", "net", "net.py:8", 2_000_000, 1_500_000, 0, None),
        (2, 2, "c", "aten::mean", "net", "net.py:9", 3_500_000, 40_500, 0, None),
        (2, 3, "d", "aten::sum", "", "", 3_600_000, 900, 0, None),
        (2, 4, "loss", "aten::add", "", "", 3_700_000, 800, 0, None),
        (2, 5, "w.1", "aten::sub_", "", "", 3_800_000, 700, 0, None),
    ],
    "tensors": [
        (1, 0, "x", "input", 64, "Float", "[16]"),
        (2, 0, "x", "input", 1 * MIB, "Float", "[512, 512]"),
        (2, 1, "w", "input", 2 * MIB, "Float", "[1024, 512]"),
        (2, 2, "lr", "constant", 4, "Float", "[]"),
        (2, 3, "a", "intermediate", 4 * MIB, "Float", "[1024, 1024]"),
        (2, 4, "", "workspace", MIB // 2, "", ""),
        (2, 5, "b", "intermediate", 8 * MIB, "Float", "[2048, 1024]"),
        (2, 6, "c", "intermediate", 1 * MIB, "Float", "[512, 512]"),
        (2, 7, "d", "intermediate", 1 * MIB, "Float", "[512, 512]"),
        (2, 8, "loss", "output", 4, "Float", "[]"),
        (3, 0, "x", "input", 64, "Float", "[16]"),
    ],
    "uses": [
        (2, use, op, tensor, kind, 0 if kind == "result" else None)
        for use, (op, tensor, kind) in enumerate([
            (0, 0, "read"), (0, 1, "read"), (0, 3, "result"),
            (1, 0, "read"), (1, 5, "result"),
            (2, 3, "read"), (2, 6, "result"),
            (3, 5, "read"), (3, 7, "result"),
            (4, 6, "read"), (4, 7, "read"), (4, 8, "result"),
            (5, 8, "read"), (5, 1, "write"),
        ])
    ],
    # run_id, allocation, tensor, op, index_in_op, requested, rounded, stream, allocate_event, free_op, free_event, source,
    # lane
    "allocations": [
        (2, 0, 3, 0, 0, 4 * MIB, 4 * MIB, 0, 0, 2, 5, "allocator", 0),
        (2, 1, 4, 0, 1, MIB // 2, MIB // 2, 0, 1, 0, 2, "allocator", 0),
        (2, 2, 5, 1, 0, 8 * MIB, 8 * MIB, 0, 3, 3, 7, "allocator", 0),
        (2, 3, 6, 2, 0, 1 * MIB, 1 * MIB, 0, 4, 4, 9, "allocator", 0),
        (2, 4, 7, 3, 0, 1 * MIB, 1 * MIB, 0, 6, 4, 10, "allocator", 0),
        (2, 5, 8, 4, 0, 4, 64, 0, 8, None, None, "allocator", 0),
    ],
    "plans": [
        (2, 13 * MIB + 4, 16 * MIB + 4, 13 * MIB + 4, "optimal", 10 * MIB, 10 * MIB, "optimal", 1_500_000,
         "graph(%x, %w)", 0),
    ],
    "plan_order": [(2, step, op) for step, op in enumerate([0, 2, 1, 3, 4, 5])],
    "slots": [
        (2, 0, 3, 0, 4 * MIB, None),
        (2, 1, 4, 4 * MIB, MIB // 2, None),
        (2, 2, 5, 0, 8 * MIB, None),
        (2, 3, 6, 8 * MIB, 1 * MIB, None),
        (2, 4, 7, 9 * MIB, 1 * MIB, None),
    ],
    "points": [
        (2, point, kind, op, tensor, None)
        for point, (kind, op, tensor) in enumerate([
            ("place", 0, 3), ("place", 0, 4), ("place", 2, 6), ("free", 2, 3), ("place", 1, 5), ("place", 3, 7),
            ("free", 3, 5), ("free", 4, 6), ("free", 4, 7),
        ])
    ],
}

# Run 4 is a step of a loop that repeats: the gradient (4 MiB) that the step before left is freed by op 0; op 2 makes the
# next, in an autograd thread. Tensors take turns at 4 and 8 MiB. The 64 KiB of op 3 outlive the next step.
#
# MiB live: the old gradient 4 | free 0 | y 2 | gradient 6, y2 8, free y2 6, free y 4 | 64 KiB more
STEP = f"""
    INSERT INTO runs VALUES
      (4, 'step on cpu', 'step:1f', '0a', 'cpu', '2.11.0', '0.1.0', 'steady_clock', 1700000180000000000, 2, 0, 1, 4000,
       {8 * MIB}, '', '1', 64, 0, 'step');
    INSERT INTO ops VALUES
      (4, 0, 'zero_.0', 'aten::zero_', '', '', 0, 400, 0, NULL), (4, 1, 'linear.0', 'aten::linear', '', '', 500, 900, 0, NULL),
      (4, 2, 'mm.0', 'aten::mm', 'MmBackward0', '', 1500, 1000, 0, NULL), (4, 3, 'outside.0', 'outside', '', '', 2500, 0, 0, NULL);
    INSERT INTO tensors VALUES
      (4, 0, 'linear.0', 'intermediate', {2 * MIB}, '', ''), (4, 1, 'mm.0', 'output', {4 * MIB}, '', ''),
      (4, 2, 'mm.0/1', 'workspace', {2 * MIB}, '', ''), (4, 3, 'outside.0', 'output', 65536, '', '');
    INSERT INTO allocations VALUES
      (4, 0, 0, 1, 0, {2 * MIB}, {2 * MIB}, 0, 1, 2, 5, 'allocator', 0),
      (4, 1, 1, 2, 0, {4 * MIB}, {4 * MIB}, 0, 2, NULL, NULL, 'allocator', 1),
      (4, 2, 2, 2, 1, {2 * MIB}, {2 * MIB}, 0, 3, 2, 4, 'allocator', 1),
      (4, 3, 3, 3, 0, 65536, 65536, 0, 6, NULL, NULL, 'allocator', 0);
    INSERT INTO carried VALUES (4, 1, 0, 0);
    INSERT INTO plans VALUES
      (4, {8 * MIB}, {8 * MIB}, {8 * MIB}, 'optimal', {12 * MIB}, {8 * MIB}, 'feasible', 700, '', 0);
    INSERT INTO plan_order VALUES (4, 0, 0), (4, 1, 1), (4, 2, 2), (4, 3, 3);
    INSERT INTO slots VALUES
      (4, 0, 0, 0, {2 * MIB}, 0), (4, 1, 1, {4 * MIB}, {4 * MIB}, {8 * MIB}), (4, 2, 2, {2 * MIB}, {2 * MIB}, {2 * MIB});
    INSERT INTO points VALUES
      (4, 0, 'place', 1, 0, NULL), (4, 1, 'place', 2, 1, NULL), (4, 2, 'place', 2, 2, NULL), (4, 3, 'free', 2, 2, NULL),
      (4, 4, 'free', 2, 0, NULL), (4, 5, 'free', 0, 1, NULL);
"""

# What makes run 2 one on CUDA: CUPTI confirms a and b, and saw c in another size than the allocator was asked for.
ON_CUDA = f"""
    UPDATE runs SET device = 'GPU', clock = 'cupti', alignment_bytes = 512, size_mismatches = 1 WHERE id = 2;
    UPDATE allocations SET source = 'cupti' WHERE run_id = 2 AND tensor IN (3, 5);
    INSERT INTO device_memory VALUES
      (2, 0, 0, 'allocate', 4096, {4 * MIB}, 100, 0), (2, 1, 1, 'allocate', 8192, {8 * MIB}, 2000100, 2),
      (2, 2, 2, 'allocate', 12288, {2 * MIB}, 3500100, 3), (2, 3, 2, 'free', 4096, {4 * MIB}, 3500200, 0),
      (2, 4, NULL, 'allocate', 16384, 512, 3500300, NULL);
    INSERT INTO kernels VALUES
      (2, 0, 0, 'gemm', 1000, 1500000, 7), (2, 1, 0, 'gemm', 1600000, 300000, 7), (2, 2, 0, 'split', 1900000, 2000, 7),
      (2, 3, 2, 'reduce', 3500400, 40000, 7), (2, 4, NULL, 'reduce', 3600000, 150000, 7);
    INSERT INTO copies VALUES (2, 0, 0, 'set', 64, 1902000, 1000, 7), (2, 1, 1, 'device_to_device', 8, 2000200, 900, 7);
"""


def change_store(path: Path, script: str) -> None:
    """Changes a store behind stowage's back."""
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def damaged_copies(store: Path, count: int) -> Iterator[tuple[int, str]]:
    """Writes copies of a store with a few wrong bytes, one after the other beside it; yields each one's seed and name."""
    whole = store.read_bytes()
    for seed in range(count):
        chance = random.Random(seed)
        content = bytearray(whole)
        for _ in range(chance.choice([1, 5, 30])):
            content[chance.randrange(len(content))] = chance.randrange(256)
        store.with_name("damaged.db").write_bytes(content)
        yield seed, "damaged.db"


def make_store(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; BEGIN; {SCHEMA}")
    for table, rows in ROWS.items():
        for row in rows:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.commit()
    connection.close()
