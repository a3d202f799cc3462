# SPDX-License-Identifier: Apache-2.0
"""Arenas of two blocks: one in memory that the allocator could not give back, one in a pool of its own."""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import stowage
import torch
from cuda.cut_arena import MIB, ROWS, TENSOR_MIB, leave_spare, pools
from cuda.stepping import HOOKED, Step, hooked, notes

BENCHMARKS = Path(__file__).parents[2] / "scripts/benchmarks"
ARENA_BYTES = 2 * TENSOR_MIB * MIB


@pytest.fixture(autouse=True)
def other_pools():
    """Those that there are already: what a library holds from an earlier capture."""
    return set(pools())


@pytest.fixture
def own_pools(other_pools):
    """The sizes of those that have come since."""
    return lambda: [size for pool, size in pools().items() if pool not in other_pools]


def planned_step():
    """A step whose arena is cut, and what pins the memory beside it."""
    stowage.enable()
    before = pools()
    step = Step(HOOKED, rows=ROWS)
    pins = leave_spare()
    step.until_planned()
    assert stowage.status()["arena_bytes"] == ARENA_BYTES
    assert [size for pool, size in pools().items() if pool not in before] == [TENSOR_MIB * MIB]
    return step, pins


def test_the_statistics_are_those_of_both_blocks(dry, own_pools):
    step, pins = planned_step()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()
    stowage.disable()
    torch.cuda.empty_cache()
    after = torch.cuda.memory_stats()
    assert before["allocated_bytes.all.current"] - after["allocated_bytes.all.current"] == ARENA_BYTES
    assert before["reserved_bytes.all.current"] - after["reserved_bytes.all.current"] == TENSOR_MIB * MIB
    assert own_pools() == []
    del step, pins


def test_runs_are_served_as_from_one_block(dry, own_pools, witness):
    step, pins = planned_step()
    with dry.held_events(), witness():
        for _ in range(4):
            assert step.is_planned()
            assert step.last()["hits"]["allocations"] >= 5
            assert step.last()["misses"]["busy"]["allocations"] == 0
            torch.cuda.empty_cache()
    assert own_pools() == [TENSOR_MIB * MIB]
    assert stowage.status()["arena_bytes"] == ARENA_BYTES
    del pins


def test_another_streams_run_may_use_both_blocks(dry, witness):
    step, pins = planned_step()
    stream = torch.cuda.Stream()
    with dry.held_events(), witness():
        for _ in range(3):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                assert step.is_planned()
            torch.cuda.current_stream().wait_stream(stream)
            assert step.is_planned()
    stowage.disable()
    del pins


def test_graphs_and_pools_of_the_user_stand_beside_it(dry):
    step, pins = planned_step()
    before = set(pools())
    graph = torch.cuda.CUDAGraph()
    source = torch.zeros(1000, device="cuda")
    with torch.cuda.graph(graph):
        result = source * 2
        step()  # unplanned
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.zeros(1000, device="cuda")
        step()
    assert before < set(pools()) and pool.id in pools()
    assert step.is_planned()
    graph.replay()
    assert stowage.status()["arena_bytes"] == ARENA_BYTES
    del result, held, pool, pins


@pytest.mark.parametrize("way", ["capture", "pool"])
def test_it_may_die_while_the_driver_must_not_free(dry, own_pools, way):
    step, pins = planned_step()
    survivors = []
    with hooked("first", survivors.append):
        step()
    stowage.disable()
    assert len(own_pools()) == 1  # the survivor keeps both blocks
    source = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.MemPool()
    with torch.cuda.graph(graph) if way == "capture" else torch.cuda.use_mem_pool(pool):
        first = source * 2
        survivors.clear()
        gc.collect()
        second = source * 3
    del first, second, pool
    graph.reset()
    torch.cuda.empty_cache()
    assert own_pools() == []
    del pins


def test_without_room_for_the_second_block_nothing_is_left(dry, own_pools):
    step, pins = planned_step()
    stowage.disable()
    torch.cuda.empty_cache()
    told = len(notes())
    allocated = torch.cuda.memory_allocated()
    dry.set_total_bytes(dry.used_bytes() + (512 + TENSOR_MIB - 2) * MIB)
    try:
        stowage.enable()
        step.run(3)
    finally:
        dry.set_total_bytes(81559 * MIB)
    (line,) = [line for line in notes(told) if "goes on unplanned" in line]
    assert f"is given up: cannot have the arena of {ARENA_BYTES} B: CUDA out of memory. Tried to allocate 16.00" in line
    assert "\n" not in line
    assert own_pools() == []
    assert torch.cuda.memory_allocated() == allocated
    assert step.phase()["state"] == "unplanned"
    del pins


def test_it_comes_and_goes(dry, own_pools):
    step, pins = planned_step()
    reserved = []
    for _ in range(6):
        stowage.disable()
        stowage.enable()
        assert step.is_planned()
        assert own_pools() == [TENSOR_MIB * MIB]
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert len(set(reserved[1:])) == 1
    del pins


def test_it_comes_and_goes_while_other_threads_work(dry, own_pools):
    step, pins = planned_step()
    failures, stop = [], threading.Event()

    def work(act):
        try:
            while not stop.is_set():
                act()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(act,)) for act in (step, torch.cuda.empty_cache)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        stowage.disable()
        stowage.enable()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    step()
    stowage.disable()
    torch.cuda.empty_cache()
    assert own_pools() == []
    del pins


def test_a_recalled_plan_works_with_and_without_spare_memory(dry, run_python, tmp_path):
    store = str(tmp_path / "run.db")
    made, *recalled = [run_python("cut_arena.py", store, spare) for spare in ("spare", "spare", "none")]
    assert (made["state"], made["recalled"], made["pools"]) == ("planned", False, [TENSOR_MIB * MIB])
    for found, reserved in zip(recalled, (TENSOR_MIB * MIB, ARENA_BYTES), strict=True):
        assert (found["state"], found["recalled"], found["pools"]) == ("planned", True, [reserved])
        assert (found["arena_bytes"], found["last"]) == (ARENA_BYTES, made["last"])
        assert found["survivors"] == 1


def measured(mode, settings):
    command = [sys.executable, BENCHMARKS / "measuring/worker.py", "resnet18", "32", "adam", mode]
    path = os.pathsep.join([str(BENCHMARKS), str(Path(stowage.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "PYTORCH_CUDA_ALLOC_CONF": settings}
    environment.pop("PYTORCH_ALLOC_CONF", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_figures_of_resnet18(dry):
    assert measured("eager", "")["reserved_bytes"] == 1_293_942_784
    assert measured("eager", "expandable_segments:True")["reserved_bytes"] == 962_592_768
    planned = measured("planned", "expandable_segments:True")
    assert planned["allocated_bytes"] <= planned["reserved_bytes"] <= 915_000_000
    assert planned["arena_bytes"] <= 1.001 * planned["arena_bound_bytes"]
