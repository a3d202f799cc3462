# SPDX-License-Identifier: Apache-2.0
"""Planned memory on several streams, threads and devices. The witness finds memory that two users have at once."""

import re
import threading

import pytest
import stowage
import torch
from cuda.stepping import HOOKED, ROWS, TENSOR_BYTES, Step, hooked
from planning import newest_region


def side_stream(device: str = "cuda") -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def test_nothing_is_given_out_twice(dry, witness):
    stowage.enable()
    step = Step().until_planned()
    with dry.held_events(), witness():
        for _ in range(4):
            assert step.is_planned()
            assert step.last()["hits"]["allocations"] == 5


def test_only_results_on_their_inputs_are_given_out_twice(dry):
    stowage.enable()
    step = Step().until_planned()
    with dry.held_events(), dry.witness():
        assert step.is_planned()
    reused = step.last()["reused"]["allocations"]
    assert reused > 0
    ranges = [re.findall(r"\[.*?\)", line) for line in dry.violations()]
    dry.reset_counts()
    assert len(ranges) == reused
    assert all(given == live for given, live in ranges), ranges


@pytest.mark.parametrize("poison", ["0", "1"])
def test_a_tensor_that_leaks_to_another_stream_keeps_its_slot_until_that_is_done(dry, witness, poison):
    stowage.enable()
    stowage.set_option("poison", poison)
    step = Step(HOOKED).until_planned()
    hits = step.last()["hits"]["allocations"]
    stream = side_stream()
    leaked = []

    def leak(tensor):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor.mul(2)
        tensor.record_stream(stream)
        leaked.append(tensor.data_ptr())

    with dry.held_events(stream.cuda_stream), witness():
        with hooked("first", leak):
            assert step.is_planned()
        address = leaked.pop()
        # Its slot is not free in the next runs.
        for _ in range(3):
            assert step.is_planned()
            assert step.last()["misses"]["busy"]["allocations"] > 0
            assert step.last()["hits"]["allocations"] < hits
        assert dry.violations() == []
        stream.synchronize()
        with hooked("first", lambda tensor: leaked.append(tensor.data_ptr())):
            assert step.is_planned()
        assert leaked == [address]
        assert step.last()["hits"]["allocations"] == hits
        assert step.last()["misses"]["busy"]["allocations"] == 0


def test_a_tensor_that_is_kept_across_runs_is_left_alone(dry, witness):
    stowage.enable()
    step = Step(HOOKED).until_planned()
    hits = step.last()["hits"]["allocations"]
    kept = []
    with dry.held_events(), witness():
        with hooked("first", kept.append):
            assert step.is_planned()
        assert step.last()["late_frees"] == 1
        for _ in range(3):
            assert step.is_planned()
            assert step.last()["misses"]["busy"]["allocations"] > 0
        kept.clear()
        assert step.is_planned()
        assert step.last()["hits"]["allocations"] == hits


def test_an_allocation_on_a_side_stream_is_not_planned(dry, witness):
    """Profiled or not: the plan says that it escapes, or it is counted as another stream's."""
    stowage.enable()
    step = Step(HOOKED).until_planned()
    hits = step.last()["hits"]["allocations"]
    stream = side_stream()

    def compute(tensor):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            held.append(tensor * 2)
        torch.cuda.current_stream().wait_stream(stream)
        held.clear()

    held = []
    with dry.held_events(), witness(), hooked("first", compute):
        for _ in range(3):
            assert step.is_planned()
            assert step.last()["misses"]["stream"] == {"allocations": 1, "bytes": TENSOR_BYTES}
            # The op's own result comes second now.
            assert step.last()["hits"]["allocations"] == hits - 1

    with hooked("first", compute):
        profiled = Step(HOOKED.replace("sigmoid", "tanh")).until_planned()
        with dry.held_events(), witness():
            assert profiled.is_planned()
        assert profiled.last()["misses"]["stream"]["allocations"] == 0
        assert profiled.last()["misses"]["busy"]["allocations"] == 0
        assert profiled.last()["hits"]["allocations"] == hits


@pytest.mark.parametrize("first", ["default", "side"])
def test_runs_on_different_streams_follow_each_other(dry, witness, first):
    stowage.enable()
    streams = {"default": torch.cuda.default_stream(), "side": side_stream()}
    with torch.cuda.stream(streams[first]):
        step = Step().until_planned()
    torch.cuda.synchronize()
    with dry.held_events(), witness():
        for name in ("side", "default", "side", "side", "default"):
            streams[name].wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(streams[name]):
                assert step.is_planned()
                assert step.last()["hits"]["allocations"] == 5
            torch.cuda.current_stream().wait_stream(streams[name])


@pytest.mark.parametrize("own_streams", [False, True])
def test_two_threads_train_two_models(dry, witness, own_streams):
    stowage.enable()
    steps = [Step(), Step(HOOKED)]
    for step in steps:
        step.until_planned()
    failures = []
    start = threading.Barrier(2)

    def train(step):
        try:
            stream = side_stream() if own_streams else torch.cuda.default_stream()
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                start.wait()
                for _ in range(40):
                    step()
        except BaseException as failure:
            failures.append(failure)

    with dry.held_events(), witness():
        threads = [threading.Thread(target=train, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    # A run that finds the arena taken goes unplanned.
    assert all(step.runs() <= 3 + 40 for step in steps)
    assert sum(step.runs() for step in steps) > 6
    assert stowage.status()["arena_bytes"] == max(step.phase()["arena_bytes"] for step in steps)


def test_a_thread_plans_while_another_allocates(dry, witness):
    stowage.enable()
    step = Step().until_planned()
    stop = threading.Event()

    def allocate():
        with torch.cuda.stream(side_stream()):
            while not stop.is_set():
                torch.empty(ROWS, ROWS, device="cuda").fill_(1)

    with witness():
        other = threading.Thread(target=allocate)
        other.start()
        for _ in range(20):
            assert step.is_planned()
            assert step.last()["hits"]["allocations"] == 5
            assert step.last()["misses"]["stream"]["allocations"] == 0
        stop.set()
        other.join()


def test_two_devices(run_python):
    """In a process of its own, with two of them."""
    assert run_python("two_devices.py", DRYCUDA_DEVICES="2") == {"violations": [], "planned": [True, True] * 3,
                                                                 "notes": []}


def test_a_profiled_run_may_record_streams(dry):
    stowage.enable()
    stream = side_stream()

    def use(tensor):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor.mul(2)
        tensor.record_stream(stream)

    step = Step(HOOKED)
    with dry.held_events(), hooked("first", use):
        step.run(8)
        assert step.function is not None and newest_region()["phases"][0]["state"] == "planned"
        assert newest_region()["phases"][0]["last"]["hits"]["allocations"] > 0
