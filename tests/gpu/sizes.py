# SPDX-License-Identifier: Apache-2.0
"""Whether CUPTI and the allocator agree on the sizes in a store that is written here, and CUPTI dropped nothing."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

import stowage
import torch

from gpu.outcome import Failure, Part, Skip, first_line
from gpu.training import DEVICE, Case, Training, planned_phase

CASES = (Case("resnet18", 8, "sgd"), Case("transformer", 8, "adam"))
NEEDS_S = 6


def has_view(store: sqlite3.Connection, name: str) -> bool:
    return store.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)).fetchone() is not None


def columns(store: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in store.execute(f"PRAGMA table_info({table})")]


def one(store: sqlite3.Connection, sql: str) -> int:
    return store.execute(sql).fetchone()[0]


def read_sizes(store: sqlite3.Connection) -> dict[str, int]:
    """Counts over all runs; those of CUPTI are left out of a store that has no place for them."""
    found = {"runs": one(store, "SELECT count(*) FROM runs"),
             "dropped_records": one(store, "SELECT coalesce(sum(dropped_records), 0) FROM runs"),
             "allocations": one(store, "SELECT count(*) FROM allocations")}
    if "size_mismatches" in columns(store, "runs"):
        found["size_mismatches"] = one(store, "SELECT coalesce(sum(size_mismatches), 0) FROM runs")
    if has_view(store, "size_sources"):
        found["sizes_seen_twice"] = one(store, "SELECT count(*) FROM size_sources")
        found["sizes_unlike"] = one(store, "SELECT count(*) FROM size_sources WHERE allocator_bytes != cupti_bytes")
    if has_view(store, "kernels"):
        found["kernels"] = one(store, "SELECT count(*) FROM kernels")
        found["kernels_of_ops"] = one(store, "SELECT count(*) FROM kernels WHERE op IS NOT NULL")
    return found


def judge(found: dict[str, int], notes: list[str]) -> tuple[str, dict[str, int]]:
    """What `found` says, as a check's detail and values."""
    if found["runs"] == 0:
        raise Failure("no run was stored")
    for name in ("dropped_records", "size_mismatches", "sizes_unlike"):
        if found.get(name, 0) > 0:
            raise Failure(f"{name}: {found[name]}; all counts: {found}")
    if "sizes_seen_twice" not in found:
        raise Skip(f"not recorded: this build's store has no sizes of CUPTI's; {found}")
    if found["sizes_seen_twice"] == 0:
        told = "; ".join(map(first_line, notes)) or "none"
        raise Skip(f"not recorded: CUPTI saw no allocation; notes: {told}; {found}")
    seen, kernels, of_ops = (found.get(name, 0) for name in ("sizes_seen_twice", "kernels", "kernels_of_ops"))
    return (f"{seen} of {found['allocations']} allocations seen by CUPTI too, all with the same size; "
            f"{of_ops} of {kernels} kernels belong to an op; nothing dropped"), found


def check(case: Case, folder: Path) -> tuple[str, dict[str, int]]:
    path = folder / f"{case.model}.db"
    stowage.enable(store=path)
    try:
        training = Training(case)
        step = training.capture()
        training.run(step)
        planned_phase()
    finally:
        stowage.disable()
    store = sqlite3.connect(path)
    try:
        return judge(read_sizes(store), stowage.status()["notes"])
    finally:
        store.close()


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            part.attempt(f"{case}: sizes in the store", NEEDS_S, lambda: check(case, Path(folder)))


if __name__ == "__main__":
    main()
