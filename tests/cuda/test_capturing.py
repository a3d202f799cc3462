# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs that are captured while stowage has something to do with the memory."""

import threading
from contextlib import contextmanager

import pytest
import stowage
import torch
from cuda.stepping import HOOKED, ROWS, Step, hooked
from planning import newest_region


class Capture:
    """A capture on a thread of its own, from `begin` until `end`."""

    def __init__(self):
        self.begun, self.ending, self.failures = threading.Event(), threading.Event(), []
        self.graph = torch.cuda.CUDAGraph()
        self.input = torch.zeros(1000, device="cuda")
        self.thread = threading.Thread(target=self.capture)

    def capture(self):
        try:
            with torch.cuda.graph(self.graph):
                result = self.input * 2
                self.begun.set()
                assert self.ending.wait(60)
                result += 1
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            self.begun.set()

    def begin(self, *_):
        self.thread.start()
        assert self.begun.wait(60)

    def end(self, dry):
        self.ending.set()
        self.thread.join()
        assert self.failures == []
        dry.reset_counts()
        self.graph.replay()
        torch.cuda.synchronize()
        # Two kernels, and nothing of stowage's.
        assert (dry.counts()["launches"], dry.counts()["sets"]) == (2, 0)


@contextmanager
def clean(dry):
    yield
    assert dry.violations() == []
    assert dry.counts()["driver_frees_while_capturing"] == 0


def test_a_capture_during_a_planned_run(dry):
    stowage.enable()
    step = Step(HOOKED).until_planned()
    capture = Capture()
    with clean(dry):
        with hooked("first", capture.begin):
            assert step.is_planned()
        for _ in range(2):
            assert not step.is_planned()
    capture.end(dry)
    for _ in range(3):
        assert step.is_planned()


@pytest.mark.parametrize("run", [1, 2, 3])
def test_a_capture_during_a_profiled_run(dry, run):
    """The second takes its memory from the driver itself, block by block, and gives it back."""
    stowage.enable()
    step = Step(HOOKED)
    step.run(run)
    # PyTorch's own allocator may not ask the driver now, either: leave it room in segments that it cannot give back.
    pins = [torch.empty(ROWS, ROWS, device="cuda") for _ in range(17)][::8]
    capture = Capture()
    with clean(dry):
        with hooked("first", capture.begin):
            step()
        step()
    capture.end(dry)
    del pins
    step.run(6)
    step.region = newest_region()
    assert step.is_planned()
    assert step.last()["hits"]["allocations"] > 0


def test_a_planned_tensor_that_dies_during_a_capture(dry):
    stowage.enable()
    step = Step(HOOKED).until_planned()
    kept = []
    with hooked("first", kept.append):
        assert step.is_planned()
    capture = Capture()
    capture.begin()
    with clean(dry):
        kept.clear()  # would be poisoned at any other time
    capture.end(dry)
    with dry.held_events():
        for _ in range(3):
            assert step.is_planned()
            assert step.last()["misses"]["busy"]["allocations"] == 0


def test_a_planned_tensor_of_another_stream_that_dies_during_a_capture(dry):
    stowage.enable()
    step = Step(HOOKED).until_planned()
    stream = torch.cuda.Stream()
    kept = []

    def keep(tensor):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor.mul(2)
        tensor.record_stream(stream)
        kept.append(tensor)

    with hooked("first", keep):
        assert step.is_planned()
    capture = Capture()
    capture.begin()
    with clean(dry):
        kept.clear()
        stowage.disable()
        stowage.enable()
    capture.end(dry)
    assert step.is_planned()
    assert step.last()["misses"]["busy"]["allocations"] == 0


def test_a_recalled_plan_takes_no_memory_from_a_pool(dry, tmp_path):
    stowage.enable(tmp_path / "profile.db")
    Step().until_planned()
    stowage.disable()
    stowage.enable(tmp_path / "profile.db")
    step = Step()
    step()  # the run that TorchScript profiles
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        step()
    assert stowage.status()["arena_bytes"] == 0
    step.region = newest_region()
    assert step.phase()["recalled"]
    assert step.is_planned()
    assert all(block["state"] == "inactive" for segment in pool.snapshot() for block in segment["blocks"])


def test_a_graph_holds_nothing_of_a_planned_tensor_that_it_frees(dry):
    """Its stream is the one that the tensor's memory is in the order of."""
    stowage.enable()
    step = Step(HOOKED).until_planned()
    kept = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), hooked("first", kept.append):
        assert step.is_planned()
    graph = torch.cuda.CUDAGraph()
    with clean(dry):
        with torch.cuda.graph(graph, stream=stream):
            result = kept.pop() * 2
        dry.reset_counts()
        graph.replay()
        assert (dry.counts()["launches"], dry.counts()["sets"]) == (1, 0)
    del result
