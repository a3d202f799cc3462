# SPDX-License-Identifier: Apache-2.0
"""Reads a store: the SQLite file of runs and plans that profiler/schema.sql documents. Needs no torch."""

import bisect
import os
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from stowage.peaks import Allocation, Op

APPLICATION_ID = 0x73746F77  # "stow"
SCHEMA_VERSION = 6
OLDEST_SQLITE = (3, 37)  # STRICT tables
#: Kinds of tensors that are there before the first op.
HELD_KINDS = ("input", "constant")
DAMAGED = "the file is damaged: move it away and profile again"
NO_STORE = "the file is damaged, cut short or no store: move it away and profile again"
# Python decodes SQLite's messages, which may quote a damaged file.
FAILURES = (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)

Row = dict[str, Any]


class StoreError(Exception):
    """A store cannot be opened or read, or has not what was asked for. One line: what, why, and how to mend it."""


class Store:
    """A store open for reading. Its rows are dictionaries, with the unit in the name of each quantity."""

    def __init__(self, path: str) -> None:
        self.path = path
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            self._refuse(f"SQLite {sqlite3.sqlite_version} is too old; use a Python with SQLite 3.37 or newer")
        if not os.path.exists(path):
            self._refuse("no such file; check the path")
        if os.path.isdir(path):
            self._refuse("it is a folder; name the file in it")
        if not os.access(path, os.R_OK):
            self._refuse("permission denied; choose a store that you may read")
        try:
            self._connection = self._open()
            self._check()
        except FAILURES as error:
            self._refuse(f"{cause(error)}; {mend(error, NO_STORE)}")

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _refuse(self, why: str) -> None:
        raise StoreError(f"cannot open store '{self.path}': {why}")

    def _open(self) -> sqlite3.Connection:
        uri = Path(self.path).absolute().as_uri()
        connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA application_id")
        except sqlite3.OperationalError:
            connection.close()
            log = Path(f"{self.path}-wal")
            if os.access(log.absolute().parent, os.W_OK):
                raise
            # A reader of a file with a write-ahead log makes an index beside it. Where the folder forbids that and the
            # log is empty, nobody can be writing, and the file may be read as it lies.
            if log.exists() and log.stat().st_size > 0:
                self._refuse("its last runs are in a log that SQLite reads only in a folder it may write to; copy the "
                             f"file and '{log.name}' to one")
            connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.execute("BEGIN")  # one state of the file, whatever a training run writes meanwhile
        return connection

    def _check(self) -> None:
        application_id, version = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables == 0:
            self._refuse("it is empty; profile a run into it first")
        if application_id != APPLICATION_ID:
            self._refuse("it is another program's SQLite file; choose another path")
        if version > SCHEMA_VERSION:
            self._refuse(f"schema {version}, this build reads {SCHEMA_VERSION}; profile again into another file or use "
                         "a newer stowage")
        if version < SCHEMA_VERSION:
            self._refuse(f"schema {version}, this build reads {SCHEMA_VERSION}; train with it once, which migrates it")

    def query(self, sql: str, *values: Any) -> list[Row]:
        """Runs a query of our own."""
        try:
            return self._rows(self._connection.execute(sql, values))
        except FAILURES as error:
            raise StoreError(f"cannot read store '{self.path}': {cause(error)}; {mend(error, DAMAGED)}") from error

    def user_query(self, sql: str) -> tuple[list[str], list[Row]]:
        """Runs one statement of the user's, which can only read. Returns the columns' names and the rows."""
        # The store is open for reading only, but ATTACH would make another file.
        self._connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK)
        try:
            cursor = self._connection.execute(sql)
            rows = self._rows(cursor)
        except (*FAILURES, ValueError) as error:
            raise StoreError(f"cannot run SQL on store '{self.path}': {cause(error)}; to see its tables, ask for "
                             "\"SELECT name, sql FROM sqlite_schema\"") from error
        if cursor.description is None:
            raise StoreError(f"cannot run SQL on store '{self.path}': it asks for nothing; begin with SELECT")
        return unique_names(cursor), rows

    @staticmethod
    def _rows(cursor: sqlite3.Cursor) -> list[Row]:
        names = unique_names(cursor)
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def context(self) -> Row:
        """What all the store's runs were made with."""
        row = self.query("SELECT coalesce(sum(dropped_records), 0) AS dropped_records, "
                         "min(created_unix_ns) AS first_unix_ns, max(created_unix_ns) AS last_unix_ns FROM runs")[0]
        for name in ("stowage_version", "torch_version", "device", "clock"):
            row[name] = [found[name] for found in self.query(f"SELECT {name} FROM runs GROUP BY 1 ORDER BY min(id)")]
        row |= self.query("""
            SELECT (SELECT count(*) FROM allocations) AS allocations,
                   (SELECT count(*) FROM allocations WHERE source = 'cupti') AS cupti_sizes,
                   (SELECT count(*) FROM size_sources) AS compared_sizes,
                   (SELECT coalesce(sum(size_mismatches), 0) FROM runs) AS size_mismatches""")[0]
        return {"store": self.path, "schema": SCHEMA_VERSION, "size_bytes": os.path.getsize(self.path), **row}

    def runs(self) -> list[Row]:
        """Runs, oldest first, each with the figures of its plan or None for them."""
        rows = self.query("""
            SELECT r.id AS run_id, r.name, r.kind, (SELECT count(*) FROM ops AS o WHERE o.run_id = r.id) AS ops,
                   r.execution, r.complete, r.dropped_records, r.created_unix_ns, r.duration_ns,
                   r.peak_bytes AS unplanned_peak_bytes, p.peak_bytes AS planned_peak_bytes,
                   p.program_peak_bytes, p.bound_bytes, p.order_status, p.arena_bytes, p.arena_bound_bytes,
                   p.layout_status, p.planning_ns, r.device, r.torch_version, r.stowage_version, r.clock,
                   r.alignment_bytes, r.size_mismatches,
                   (SELECT count(*) FROM size_sources AS s WHERE s.run_id = r.id) AS compared_sizes
            FROM runs AS r LEFT JOIN plans AS p ON p.run_id = r.id ORDER BY r.id""")
        return [{**row, "complete": bool(row["complete"])} for row in rows]

    def run(self, run_id: int | None) -> Row:
        """The run with that id; for None the newest that has a plan, or else the newest."""
        runs = self.runs()
        if not runs:
            raise StoreError(f"cannot choose a run of store '{self.path}': it has none; profile a run into it first")
        if run_id is None:
            run_id = max((run["planned_peak_bytes"] is not None, run["run_id"]) for run in runs)[1]
        for run in runs:
            if run["run_id"] == run_id:
                self._refuse_dangling(run_id)
                return run
        has = f"runs {runs[0]['run_id']} to {runs[-1]['run_id']}" if len(runs) > 1 else f"run {runs[0]['run_id']} only"
        raise StoreError(f"cannot find run {run_id} in store '{self.path}': it has {has}; list them with "
                         "'stowage info'")

    def _refuse_dangling(self, run_id: int) -> None:
        """Refuses a run whose rows name ops or tensors that are not there."""
        names = (("uses", "op", "ops"), ("uses", "tensor", "tensors"), ("allocations", "op", "ops"),
                 ("allocations", "free_op", "ops"), ("allocations", "tensor", "tensors"), ("plan_order", "op", "ops"),
                 ("slots", "tensor", "tensors"), ("points", "op", "ops"), ("points", "tensor", "tensors"),
                 ("points", "of_tensor", "tensors"), ("reuses", "op", "ops"), ("reuses", "tensor", "tensors"),
                 ("reuses", "of_tensor", "tensors"), ("kernels", "op", "ops"), ("copies", "op", "ops"),
                 ("device_memory", "op", "ops"), ("device_memory", "allocation", "allocations"),
                 ("carried", "allocation", "allocations"), ("carried", "free_op", "ops"))
        for table, name, parent in names:
            parent_name = parent.removesuffix("s")
            dangling = self.query(f"SELECT {name} AS id FROM {table} WHERE run_id = ?1 AND {name} NOT IN "
                                  f"(SELECT {parent_name} FROM {parent} WHERE run_id = ?1) LIMIT 1", run_id)
            if dangling:
                raise StoreError(f"cannot read run {run_id} of store '{self.path}': {table} name {parent_name} "
                                 f"{dangling[0]['id']}, which is not there; {DAMAGED}")

    def planned_run(self, run_id: int | None) -> Row:
        """As `run`, but refuses one without a plan."""
        run = self.run(run_id)
        if run["planned_peak_bytes"] is None:
            raise StoreError(f"cannot show the plan of run {run['run_id']} in store '{self.path}': it has none; "
                             "choose a planned run from 'stowage info'")
        return run

    def step(self, run_id: int | None) -> Row:
        """The run with that id; for None a step of a loop rather than a graph, which may be part of one, and of these the
        newest that has a plan, or else the newest."""
        runs = self.runs()
        if run_id is None and runs:
            run_id = max((run["kind"] == "step", run["planned_peak_bytes"] is not None, run["run_id"]) for run in runs)[2]
        return self.run(run_id)

    def recorded_step(self, run: Row) -> tuple[list[Op], list[Allocation]]:
        """Its ops in order, and its allocations in order."""
        ops = self.query("SELECT op, name, kind, scope FROM ops WHERE run_id = ? ORDER BY op", run["run_id"])
        allocations = self.query("""
            SELECT a.op, a.requested_bytes AS size_bytes, a.allocate_event, a.free_op, a.free_event,
                   c.free_op AS next_free_op, c.free_event AS next_free_event
            FROM allocations AS a LEFT JOIN carried AS c ON c.run_id = a.run_id AND c.allocation = a.allocation
            WHERE a.run_id = ? ORDER BY a.allocate_event""", run["run_id"])
        if not allocations:
            raise StoreError(f"cannot explain run {run['run_id']} of store '{self.path}': it allocates nothing of 1 KiB or "
                             "more; choose another from 'stowage info'")
        return [Op(**row) for row in ops], [Allocation(**row) for row in allocations]

    def ops(self, run: Row, planned: bool) -> list[Row]:
        """Ops in the order in which they run. `live_bytes` is the most that lives while the op runs.

        `device_ns` is the time of an op's kernels and copies; None for those that had the device do nothing.
        """
        timeline = "planned_timeline" if planned else "timeline"
        steps = "plan_order" if planned else "(SELECT run_id, op, op AS step FROM ops)"
        rows = self.query(f"""
            SELECT s.step, o.op, o.name, o.kind, o.scope, o.source, o.start_ns, o.duration_ns,
                   d.kernel_ns + d.copy_ns AS device_ns, d.kernels
            FROM {steps} AS s JOIN ops AS o ON o.run_id = s.run_id AND o.op = s.op
            LEFT JOIN op_device_time AS d ON d.run_id = o.run_id AND d.op = o.op
            WHERE s.run_id = ? ORDER BY s.step""", run["run_id"])
        events = defaultdict(list)
        for event in self.query(f"SELECT op, change_bytes, live_bytes FROM {timeline} WHERE run_id = ? ORDER BY event",
                                run["run_id"]):
            events[event["op"]].append(event)

        live_bytes = events[None][0]["live_bytes"]
        for row in rows:
            changes = [event["change_bytes"] for event in events[row["op"]]]
            lives = [live_bytes, *(event["live_bytes"] for event in events[row["op"]])]
            live_bytes = lives[-1]
            row["allocated_bytes"] = sum(change for change in changes if change > 0)
            row["freed_bytes"] = -sum(change for change in changes if change < 0)
            row["live_bytes"] = max(lives)
            row["live_after_bytes"] = live_bytes
        return rows

    def kernels(self, run: Row) -> list[Row]:
        """The kernels that each op launched, most time first; `op` is None for those that no op launched."""
        rows = self.query("""
            SELECT sum(k.duration_ns) AS total_ns, count(*) AS count, k.op, o.kind AS op_kind, o.name AS op_name,
                   o.source, k.name
            FROM kernels AS k LEFT JOIN ops AS o ON o.run_id = k.run_id AND o.op = k.op
            WHERE k.run_id = ? GROUP BY k.op, k.name ORDER BY total_ns DESC, k.op, k.name""", run["run_id"])
        if not rows:
            raise StoreError(f"cannot show the kernels of run {run['run_id']} in store '{self.path}': it has none; "
                             "profile on CUDA, where CUPTI may be used")
        return rows

    def tensors(self, run: Row) -> list[Row]:
        """Tensors as they lived in the recorded run, biggest first."""
        # The index is named, as SQLite would read all allocations again for each tensor.
        return self.query("""
            SELECT t.tensor, t.name, t.kind, coalesce(a.requested_bytes, t.size_bytes) AS size_bytes, t.dtype, t.shape,
                   a.op AS allocate_op, m.name AS allocate_name, m.kind AS allocate_kind, m.scope, m.source, a.free_op,
                   c.free_op AS next_free_op, u.op AS last_use_op, u.name AS last_use_name, u.kind AS last_use_kind
            FROM tensors AS t
            LEFT JOIN allocations AS a INDEXED BY allocations_by_tensor ON a.run_id = t.run_id AND a.tensor = t.tensor
            LEFT JOIN carried AS c ON c.run_id = a.run_id AND c.allocation = a.allocation
            LEFT JOIN ops AS m ON m.run_id = a.run_id AND m.op = a.op
            LEFT JOIN ops AS u ON u.run_id = t.run_id
                  AND u.op = (SELECT max(op) FROM uses WHERE run_id = t.run_id AND tensor = t.tensor)
            WHERE t.run_id = ? ORDER BY size_bytes DESC, t.tensor, a.allocate_event""", run["run_id"])

    def plan(self, run: Row) -> Row:
        """The plan: its order with the points at each op, and its slots by offset."""
        run_id = run["run_id"]
        order = self.query("SELECT p.step, p.op, o.name, o.kind, o.source FROM plan_order AS p "
                           "JOIN ops AS o ON o.run_id = p.run_id AND o.op = p.op "
                           "WHERE p.run_id = ? ORDER BY p.step", run_id)
        moved = moved_ops([row["op"] for row in order])
        points = defaultdict(list)
        for point in self.query("SELECT p.kind, p.op, p.tensor, t.name, p.of_tensor, i.name AS of_name FROM points AS p "
                                "LEFT JOIN tensors AS t ON t.run_id = p.run_id AND t.tensor = p.tensor "
                                "LEFT JOIN tensors AS i ON i.run_id = p.run_id AND i.tensor = p.of_tensor "
                                "WHERE p.run_id = ? ORDER BY p.point", run_id):
            shown = ("tensor", "name", "of_tensor", "of_name") if point["kind"] == "reuse" else ("tensor", "name")
            points[point["op"], point["kind"]].append({column: point[column] for column in shown})
        for row in order:
            row["moved"] = row["op"] in moved
            for kind in ("place", "reuse", "free"):
                row[kind] = points[row["op"], kind]
        slots = self.query("SELECT s.slot, s.tensor, t.name, t.kind, s.offset_bytes, s.size_bytes, "
                           "s.other_offset_bytes FROM slots AS s "
                           "LEFT JOIN tensors AS t ON t.run_id = s.run_id AND t.tensor = s.tensor "
                           "WHERE s.run_id = ? ORDER BY s.offset_bytes, s.slot", run_id)
        return {"order": order, "slots": slots}


def cause(error: Exception) -> str:
    """What SQLite says, as one line; of a damaged schema it would quote a page."""
    text = "damaged text" if isinstance(error, UnicodeDecodeError) else " ".join(str(error).rstrip(".").split())
    shortened = text if len(text) <= 120 else f"{text[:120]}..."
    return shortened[:1].lower() + shortened[1:]


def mend(error: Exception, otherwise: str) -> str:
    return "another process is writing it: try again" if "locked" in str(error) else otherwise


def moved_ops(order: list[int]) -> set[int]:
    """The fewest ops that, moved, turn program order into `order`: all but a longest increasing subsequence."""
    lasts: list[int] = []  # the least op that ends an increasing subsequence of each length
    before: dict[int, int | None] = {}
    for op in order:
        length = bisect.bisect_left(lasts, op)
        before[op] = lasts[length - 1] if length > 0 else None
        lasts[length:length + 1] = [op]
    kept: set[int] = set()
    op = lasts[-1] if lasts else None
    while op is not None:
        kept.add(op)
        op = before[op]
    return set(order) - kept


def unique_names(cursor: sqlite3.Cursor) -> list[str]:
    """The columns' names; a second "a" becomes "a:1"."""
    names: list[str] = []
    for column in cursor.description or ():
        name, count = column[0], 0
        while name in names:
            count += 1
            name = f"{column[0]}:{count}"
        names.append(name)
    return names
