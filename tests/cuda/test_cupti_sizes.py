# SPDX-License-Identifier: Apache-2.0
"""CUPTI measures a profiled step beside the allocator, is checked against it, and may be taken, forbidden or lossy."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import stowage
import torch
from cuda.stepping import HOOKED, Step, hooked
from drycuda import cupti_control as cupti
from torch.profiler import ProfilerActivity, profile

#: What the step allocates and frees itself, and its result, which outlives it.
INNER, ESCAPING = 5, 1
RESTRICTED = "NVreg_RestrictProfilingToAdminUsers=0"


@pytest.fixture(autouse=True)
def fresh_cupti(dry) -> Iterator[None]:
    cupti.reset()
    yield
    cupti.reset()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "profile.db"
    stowage.enable(store=path)
    return path


def rows(store: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def profiled_kernels() -> int:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        torch.zeros(64, 64, device="cuda").relu_()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events())


def test_both_sources_hold_the_same_sizes(store):
    Step().until_planned()
    assert rows(store, "SELECT clock, dropped_records, size_mismatches FROM runs") == [("cupti", 0, 0)]
    assert rows(store, "SELECT source, count(*) FROM allocations GROUP BY source ORDER BY source") == [
        ("allocator", ESCAPING), ("cupti", INNER)]
    sizes = rows(store, "SELECT allocator_bytes, cupti_bytes FROM size_sources")
    assert len(sizes) == INNER
    assert all(of_allocator == of_cupti > 0 for of_allocator, of_cupti in sizes)


def test_kernels_belong_to_the_ops_that_launched_them(store):
    Step().until_planned()
    kinds = rows(store, "SELECT DISTINCT o.kind FROM kernels AS k JOIN ops AS o USING (run_id, op) "
                        "WHERE k.duration_ns > 0 AND o.kind NOT LIKE '%mm' ORDER BY o.kind")  # cuBLAS does nothing here
    assert kinds == [("aten::relu",), ("aten::sigmoid",)]


@pytest.mark.parametrize(("spoil", "what"), [
    (lambda: cupti.drop_records(12), "CUPTI dropped 12 of its records"),
    (lambda: cupti.wrong_size_of(2),
     f"CUPTI and the allocator disagree on the size of 1 of {INNER + ESCAPING} allocations"),
], ids=["dropped", "mismatch"])
def test_a_run_in_doubt_is_kept_and_not_planned_from(store, spoil, what):
    step = Step()
    step.run(2)  # TorchScript's own profiled call, and the first of ours, which CUPTI does not measure
    spoil()
    step.run(1)
    assert stowage.status()["regions"][-1]["phases"][0]["state"] == "profiling"
    (note,) = [note for note in stowage.status()["notes"] if what in note]
    assert "is not planned from" in note and "\n" not in note
    step.run(4)
    assert stowage.status()["regions"][-1]["phases"][0]["state"] == "planned"
    doubtful, clean = rows(store, "SELECT dropped_records > 0 OR size_mismatches > 0, id IN (SELECT run_id FROM plans) "
                                  "FROM runs ORDER BY id")
    assert (doubtful, clean) == ((1, 0), (0, 1))


def test_a_device_that_always_drops_is_left_unplanned(store):
    stowage.set_option("max_profile_runs", "3")
    step = Step()
    for _ in range(6):
        cupti.drop_records(1)
        step.run(1)
    phase = stowage.status()["regions"][-1]["phases"][0]
    assert phase["state"] == "unplanned" and "dropped 1 of its records" in phase["why"]
    assert rows(store, "SELECT count(*) FROM plans") == [(0,)]


@pytest.mark.parametrize(("refuse", "code", "cause", "mend"), [
    (cupti.refuse_subscribe, cupti.MULTIPLE_SUBSCRIBERS, "another profiler", "stop"),
    (cupti.refuse_subscribe, cupti.INSUFFICIENT_PRIVILEGES, "INSUFFICIENT_PRIVILEGES", RESTRICTED),
    (cupti.refuse_enable, cupti.INSUFFICIENT_PRIVILEGES, "INSUFFICIENT_PRIVILEGES", RESTRICTED),
], ids=["taken", "forbidden", "forbidden-late"])
def test_without_cupti_the_allocator_alone_gives_sizes(store, refuse, code, cause, mend):
    refuse(code)
    Step().until_planned()
    notes = [note for note in stowage.status()["notes"] if note.startswith("cannot take sizes from CUPTI")]
    assert any(cause in note and mend in note for note in notes), notes
    assert all("\n" not in note for note in notes)
    assert rows(store, "SELECT DISTINCT source FROM allocations") == [("allocator",)]
    assert rows(store, "SELECT clock FROM runs") == [("steady_clock",)]
    cupti.reset()
    assert profiled_kernels() > 0


def test_a_step_that_throws_leaves_cupti_to_the_next(store):
    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("no more of this")

    broken = Step(HOOKED)
    broken.run(2)  # as above: CUPTI would measure the third
    with hooked("first", fail), pytest.raises(RuntimeError, match="no more of this"):
        broken()
    Step().until_planned()
    assert rows(store, "SELECT clock FROM runs") == [("cupti",)]


def test_torch_profiler_works_before_and_after(store):
    before = profiled_kernels()
    Step().until_planned()
    assert profiled_kernels() == before > 0
    assert rows(store, "SELECT clock, dropped_records FROM runs") == [("cupti", 0)]


def test_a_step_under_torch_profiler_takes_the_allocators_sizes(store):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        Step().until_planned()
    assert any("torch.profiler is recording" in note for note in stowage.status()["notes"])
    assert rows(store, "SELECT DISTINCT source FROM allocations") == [("allocator",)]
