# SPDX-License-Identifier: Apache-2.0
"""The order of a run's ops, as written and as planned, and what holds each op in its place. Needs no torch."""

from collections import defaultdict

from stowage.roles import phases_of
from stowage.store import Row, Store, StoreError, moved_ops

READ, OVERWRITE, REWRITE = "read after write", "write after read", "write after write"
_OP = ("op", "name", "kind", "scope", "source")


def side_by_side(store: Store, run: Row) -> list[Row]:
    """For each step the op that is there as written, and beside it, as `planned_...`, the one that is there as planned.

    An op frees tensors after its last use of them, as planned also those whose memory its own result takes. `update`
    says that it helps to update a parameter, `planned_moved` that it is one of the fewest ops whose moving makes the
    planned order, and `planned_from_step` where it was.
    """
    run_id = run["run_id"]
    ops = store.query(f"SELECT {', '.join(_OP)} FROM ops WHERE run_id = ? ORDER BY op", run_id)
    order = [row["op"] for row in store.query("SELECT op FROM plan_order WHERE run_id = ? ORDER BY step", run_id)]
    freed = _frees(store, "SELECT a.free_op AS op, a.tensor, a.requested_bytes AS size_bytes, t.name FROM allocations AS a "
                          "JOIN tensors AS t ON t.run_id = a.run_id AND t.tensor = a.tensor "
                          "WHERE a.run_id = ? AND a.free_op IS NOT NULL AND t.kind <> 'workspace' ORDER BY a.free_event",
                   run_id)
    planned = _frees(store, "SELECT p.op, t.tensor, t.size_bytes, t.name FROM points AS p JOIN tensors AS t "
                            "ON t.run_id = p.run_id AND t.tensor = coalesce(p.of_tensor, p.tensor) "
                            "WHERE p.run_id = ? AND p.kind IN ('free', 'reuse') AND t.kind <> 'workspace' ORDER BY p.point",
                     run_id)
    moved = moved_ops(order)
    phases = phases_of(store, run) if run["kind"] == "graph" else None
    updates = phases.updates if phases is not None else frozenset()

    def side(op: int, frees: dict[int, list[Row]]) -> Row:
        return {**ops[op], "update": op in updates, "frees": [tensor["name"] for tensor in frees[op]],
                "freed_bytes": sum(tensor["size_bytes"] for tensor in frees[op])}

    return [{"step": step, **side(step, freed),
             **{f"planned_{name}": value for name, value in side(op, planned).items()},
             "planned_moved": op in moved, "planned_from_step": op} for step, op in enumerate(order)]


def _frees(store: Store, sql: str, run_id: int) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in store.query(sql, run_id):
        found[row["op"]].append(row)
    return found


def find_op(store: Store, run: Row, wanted: str) -> Row:
    """The op with that number or that name, and its step in the plan or None."""
    by = "o.op" if wanted.isdecimal() else "o.name"
    found = store.query(f"SELECT {', '.join(f'o.{name}' for name in _OP)}, p.step AS planned_step FROM ops AS o "
                        "LEFT JOIN plan_order AS p ON p.run_id = o.run_id AND p.op = o.op "
                        f"WHERE o.run_id = ? AND {by} = ? LIMIT 1",
                        run["run_id"], int(wanted) if wanted.isdecimal() else wanted)
    if not found:
        raise StoreError(f"cannot find op '{wanted}' of run {run['run_id']} in store '{store.path}': it has {run['ops']} "
                         "ops, the first is 0; list them with 'stowage ops'")
    return found[0]


def waits(store: Store, run: Row) -> list[Row]:
    """Which op must follow which, and why; what follows from others is left out.

    Where the reason is a tensor, it is named: `op` reads what `after_op` wrote, writes what that has read, or writes what
    that wrote. solver/dependencies.cpp orders ops by the same rules.
    """
    run_id = run["run_id"]
    tensors = {row.pop("tensor"): row for row in store.query("SELECT tensor, name AS tensor_name, size_bytes FROM tensors "
                                                             "WHERE run_id = ?", run_id)}
    makers = {(row["op"], row["tensor"])
              for row in store.query("SELECT op, tensor FROM allocations WHERE run_id = ?", run_id)}
    reads: dict[int, list[int]] = defaultdict(list)
    writes: dict[int, list[int]] = defaultdict(list)
    for op, tensor in sorted(makers):
        writes[op].append(tensor)
    for use in store.query("SELECT DISTINCT op, tensor, kind = 'write' AS writes FROM uses WHERE run_id = ? "
                           "ORDER BY op, tensor", run_id):
        if (use["op"], use["tensor"]) not in makers:
            (writes if use["writes"] else reads)[use["op"]].append(use["tensor"])
    found: dict[tuple[int, int, int | None, str], None] = {}
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    for op in range(run["ops"]):
        for tensor in reads[op]:
            if tensor in writer:
                found[op, writer[tensor], tensor, READ] = None
        for tensor in writes[op]:
            for reader in readers[tensor]:
                found[op, reader, tensor, OVERWRITE] = None
            # In place, it reads what it writes.
            if tensor in writer and (op, writer[tensor], tensor, READ) not in found:
                found[op, writer[tensor], tensor, REWRITE] = None
        for tensor in reads[op]:
            readers[tensor].append(op)
        for tensor in writes[op]:
            writer[tensor], readers[tensor] = op, []
    by_tensor = {(op, after) for op, after, *_ in found}
    for row in store.query("SELECT DISTINCT op, after_op, reason FROM dependencies WHERE run_id = ? "
                           "ORDER BY op, after_op", run_id):
        # To take a tensor is to take a value, too.
        if row["reason"] != "value" or (row["op"], row["after_op"]) not in by_tensor:
            found[row["op"], row["after_op"], None, row["reason"]] = None
    none = {"tensor_name": None, "size_bytes": None}
    return [{"op": op, "after_op": after, "reason": reason, "tensor": tensor, **tensors.get(tensor, none)}
            for op, after, tensor, reason in found if op != after]


def around(store: Store, run: Row, op: int) -> tuple[list[Row], list[Row]]:
    """What `op` waits for and what waits for it: those ops, each with the reason and the tensor."""
    ops = {row["op"]: row for row in store.query(f"SELECT {', '.join(_OP)} FROM ops WHERE run_id = ?", run["run_id"])}
    edges = waits(store, run)

    def others(this: str, other: str) -> list[Row]:
        chosen = [edge for edge in edges if edge[this] == op]
        return [{**ops[edge[other]], **{name: edge[name] for name in ("reason", "tensor", "tensor_name", "size_bytes")}}
                for edge in sorted(chosen, key=lambda edge: edge[other])]

    return others("op", "after_op"), others("after_op", "op")
