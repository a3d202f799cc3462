# SPDX-License-Identifier: Apache-2.0
"""Makes every call on PyTorch's allocator that training code is known to make, around a step; prints what came of each.

    python allocator_calls.py planned|plain

A call's result is "ok" or the first line of its error; "during" says whether a run of the step inside the call was
planned, "after" whether one afterwards was.
"""

import json
import sys
import threading
from collections.abc import Callable

import stowage
import torch
from cuda.stepping import HOOKED, Step, hooked

from drycuda import control

MIB = 1 << 20
# cudaMallocAsync takes its figures from the driver, which dry CUDA does not model.
EXACT = torch.cuda.get_allocator_backend() == "native"
calls: list[Callable] = []


def call(function: Callable) -> Callable:
    calls.append(function)
    return function


@call
def memory_stats(step: Step) -> None:
    before = torch.cuda.memory_stats()
    step()
    after = torch.cuda.memory_stats()
    assert after["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    if EXACT:
        assert after["allocation.all.allocated"] > before["allocation.all.allocated"]


@call
def max_memory_allocated(step: Step) -> None:
    step()
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() >= 0
    assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved() >= 0
    if EXACT:
        assert torch.cuda.memory_allocated() >= stowage.status()["arena_bytes"]


@call
def reset_peak_memory_stats(step: Step) -> None:
    extra = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    del extra
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    step()
    if EXACT:
        assert torch.cuda.max_memory_allocated() < peak


@call
def memory_summary(step: Step) -> None:
    step()
    assert "Allocated memory" in torch.cuda.memory_summary()


@call
def memory_snapshot(step: Step) -> None:
    step()
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    allocated = [block["size"] for block in blocks if block["state"] == "active_allocated"]
    assert sum(allocated) == torch.cuda.memory_allocated()


@call
def record_memory_history(step: Step) -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        step()
        kept = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert kept.data_ptr() in [entry["addr"] for entry in trace if entry["action"] == "alloc"]


@call
def empty_cache(step: Step) -> None:
    cached = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    del cached
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    if EXACT:
        assert torch.cuda.memory_reserved() <= reserved - 100 * MIB
    step()


@call
def mem_get_info(step: Step) -> None:
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    step()


@call
def set_per_process_memory_fraction(step: Step) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        step()
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        try:
            torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            return
        raise AssertionError("more than half was given out")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@call
def caching_allocator_alloc(step: Step) -> None:
    allocated = torch.cuda.memory_allocated()
    pointer = torch.cuda.caching_allocator_alloc(MIB)
    other = torch.cuda.caching_allocator_alloc(MIB, stream=torch.cuda.Stream())
    if EXACT:
        assert torch.cuda.memory_allocated() == allocated + 2 * MIB
    step()
    torch.cuda.caching_allocator_delete(pointer)
    torch.cuda.caching_allocator_delete(other)
    if EXACT:
        assert torch.cuda.memory_allocated() == allocated


@call
def caching_allocator_enable(step: Step) -> None:
    cached = torch.empty(MIB, device="cuda")
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        uncached = torch.empty(MIB, device="cuda")
        # Asked by those who take a tensor's memory over.
        assert torch._C._has_Standard_Deleter(uncached.untyped_storage()._cdata)
        step()
        del cached
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
    del uncached


@call
def cudnn_benchmark(step: Step) -> None:
    torch.backends.cudnn.benchmark = True
    try:
        torch.nn.functional.conv2d(torch.empty(2, 3, 32, 32, device="cuda"), torch.empty(8, 3, 3, 3, device="cuda"))
        step.run(4)  # a signature of its own: profiled twice, then planned
    finally:
        torch.backends.cudnn.benchmark = False


@call
def cuda_graph(step: Step) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()


@call
def cuda_graph_of_another_thread(step: Step) -> None:
    """The capture begins while the step runs and ends after it."""
    begun, stepped, failures = threading.Event(), threading.Event(), []

    def capture() -> None:
        try:
            x = torch.zeros(1000, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x * 2
                begun.set()
                stepped.wait(60)
                y += 1
            graph.replay()
            torch.cuda.synchronize()
        except Exception as failure:
            failures.append(failure)
        finally:
            begun.set()

    thread = threading.Thread(target=capture)

    def start(_: torch.Tensor) -> None:
        thread.start()
        begun.wait(60)

    with hooked("first", start):
        step()
    stepped.set()
    thread.join()
    if failures:
        raise failures[0]


@call
def use_mem_pool(step: Step) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = torch.empty(10 * MIB, device="cuda")
        step()
    assert any(segment["total_size"] >= 40 * MIB for segment in pool.snapshot())
    del pooled


@call
def use_mem_pool_of_another_thread(step: Step) -> None:
    inside, done, failures = threading.Event(), threading.Event(), []

    def hold() -> None:
        try:
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                inside.set()
                done.wait(60)
        except Exception as failure:
            failures.append(failure)
        finally:
            inside.set()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    step()
    done.set()
    thread.join()
    if failures:
        raise failures[0]


@call
def share_memory(step: Step) -> None:
    """What another process opens is the block beneath."""
    kept: list[torch.Tensor] = []
    with hooked("first", kept.append):
        step()
    handle = kept[0].untyped_storage()._share_cuda_()
    assert handle[2] == kept[0].untyped_storage().nbytes()


def make(function: Callable, step: Step, is_plain: bool) -> dict:
    before = 0 if is_plain else step.runs()
    try:
        function(step)
        torch.cuda.synchronize()
        result = "ok"
    except Exception as failure:
        result = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
    if is_plain:
        step()
        return {"result": result}
    during = step.runs() > before
    return {"result": result, "during": during, "after": step.is_planned()}


def main(mode: str) -> None:
    is_plain = mode == "plain"
    step = Step(HOOKED)
    if is_plain:
        step.run(6)
    else:
        stowage.enable()
        stowage.set_option("poison", "1")
        step.until_planned()
    results = {}
    for function in calls:
        control.reset_counts()
        results[function.__name__] = make(function, step, is_plain)
        if control.violations():
            results[function.__name__]["violations"] = control.violations()
        if frees := control.counts()["driver_frees_while_capturing"]:
            results[function.__name__]["driver_frees_while_capturing"] = frees
    print(json.dumps({"backend": torch.cuda.get_allocator_backend(), "calls": results,
                      "notes": [] if is_plain else stowage.status()["notes"]}))


if __name__ == "__main__":
    main(sys.argv[1])
