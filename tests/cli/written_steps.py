# SPDX-License-Identifier: Apache-2.0
"""Writes stores of graphs that a test spells out op by op; what is allocated and freed when follows from the uses."""

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from cli.sample_store import SCHEMA


@dataclass
class Op:
    """`makes` and `workspace` are sizes in bytes; `after` are earlier ops by name, with the reason."""

    name: str
    kind: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    makes: dict[str, int] = field(default_factory=dict)
    workspace: int = 0
    after: dict[str, str] = field(default_factory=dict)
    scope: str = ""
    source: str = ""


@dataclass
class Graph:
    inputs: dict[str, tuple[int, str]]  # size and shape
    ops: list[Op]
    outputs: tuple[str, ...] = ("loss",)
    order: list[int] | None = None  # of the plan; None: there is none
    takes_over: dict[str, str] = field(default_factory=dict)  # tensors that the plan lays where a dying one lay
    bound_bytes: int = 0


def write_store(path: Path, graph: Graph, name: str = "Net") -> None:
    """Makes a store whose run 1 is the graph as it ran in program order, with its plan."""
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; BEGIN; {SCHEMA}")
    for table, rows in _Writer(graph).rows(name).items():
        for row in rows:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.commit()
    connection.close()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.uses, self.last = graph, [], {}
        self.tensors = [(name, "input", size, shape) for name, (size, shape) in graph.inputs.items()]
        self.made: list[list[int]] = []  # by op: tensors, workspace last
        for number, op in enumerate(graph.ops):
            made = [(name, "output" if name in graph.outputs else "intermediate", size, "") for name, size in op.makes.items()]
            made += [("", "workspace", op.workspace, "")] if op.workspace else []
            self.made.append(list(range(len(self.tensors), len(self.tensors) + len(made))))
            self.tensors += made
        self.maker = {name: number for number, op in enumerate(graph.ops) for name in op.makes}
        self.ids = {name: number for number, (name, *_) in enumerate(self.tensors) if name}
        for number, op in enumerate(graph.ops):
            for kind, names in (("read", op.reads), ("write", op.writes), ("result", tuple(op.makes))):
                for position, name in enumerate(names):
                    self.uses.append((number, self.ids[name], kind, position if kind == "result" else None))

    def rows(self, name: str) -> dict[str, list[tuple]]:
        ops, numbers = self.graph.ops, {op.name: number for number, op in enumerate(self.graph.ops)}
        after = [(number, numbers[earlier], reason) for number, op in enumerate(ops) for earlier, reason in op.after.items()]
        peak, allocations, _ = self.play(list(range(len(ops))), {})
        return {
            "runs": [(1, name, "57", "()", "cpu", "2.11.0", "0.1.0", "steady_clock", 1_700_000_000_000_000_000, 2, 0, 1,
                      9_000, peak, "graph()", "2", 64, 0, "graph")],
            "ops": [(1, number, op.name, op.kind, op.scope, op.source, 10 * number, 10, int(not op.writes), None)
                    for number, op in enumerate(ops)],
            "tensors": [(1, number, name, kind, size, "Float", shape)
                        for number, (name, kind, size, shape) in enumerate(self.tensors)],
            "uses": [(1, number, *row) for number, row in enumerate(self.uses)],
            "dependencies": [(1, number, *row) for number, row in enumerate(after)],
            "reuses": [(1, number, self.maker[tensor], self.ids[tensor], self.ids[of], 0, 0)
                       for number, (tensor, of) in enumerate(self.graph.takes_over.items())],
            "allocations": allocations,
            **(self.plan_rows(peak) if self.graph.order is not None else {}),
        }

    def plan_rows(self, program_peak: int) -> dict[str, list[tuple]]:
        order = self.graph.order or []
        peak, _, points = self.play(order, self.graph.takes_over)
        status = "optimal" if peak == self.graph.bound_bytes else "feasible"
        return {
            "plans": [(1, peak, program_peak, self.graph.bound_bytes, status, 0, 0, "optimal", 1_000, "graph()", 0)],
            "plan_order": [(1, step, op) for step, op in enumerate(order)],
            "points": [(1, number, *row) for number, row in enumerate(points)],
        }

    def play(self, order: list[int], takes_over: dict[str, str]) -> tuple[int, list[tuple], list[tuple]]:
        """Runs the ops in an order: the peak, the allocations and the points."""
        place = {op: step for step, op in enumerate(order)}
        last = {tensor: op for op, made in enumerate(self.made) for tensor in made}
        for op, tensor, _, _ in self.uses:
            last[tensor] = max(op, last.get(tensor, op), key=place.__getitem__)
        dying = defaultdict(list)
        for tensor, op in last.items():
            if self.tensors[tensor][1] in ("intermediate", "workspace"):
                dying[op].append(tensor)
        live = peak = sum(size for _, kind, size, _ in self.tensors if kind == "input")
        events, rows, points = count(), {}, []
        taken = {self.ids[name]: self.ids[of] for name, of in takes_over.items()}
        for op in order:
            for index, tensor in enumerate(self.made[op]):
                size = self.tensors[tensor][2]
                live += 0 if tensor in taken else size
                peak = max(peak, live)
                points.append(("reuse" if tensor in taken else "place", op, tensor, taken.get(tensor)))
                rows[tensor] = [tensor, op, index, size, size, 0, next(events), None, None, "allocator", 0]
            for tensor in sorted(dying[op], key=lambda tensor: self.tensors[tensor][1] != "workspace"):
                rows[tensor][7:9] = op, next(events)
                if tensor not in taken.values():
                    live -= self.tensors[tensor][2]
                    points += [("free", op, tensor, None)] if self.tensors[tensor][1] != "workspace" else []
        return peak, [(1, number, *row) for number, row in enumerate(rows.values())], points
