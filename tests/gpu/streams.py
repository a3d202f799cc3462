# SPDX-License-Identifier: Apache-2.0
"""Planned steps beside other work: late readers on another stream, steps on two streams and threads, CUDA graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import stowage
import torch

from gpu.outcome import Failure, Part
from gpu.training import DEVICE, STEPS, Case, Step, Tensors, Training, be_deterministic, difference, planned_phase

#: Without random draws, which threads would share.
CASE = Case("resnet18", 8, "sgd")
NEEDS_S = 4
#: Of an H200's clock: some 10 ms, many times what a step takes.
LATE_CYCLES = 20_000_000
SIZE = 1 << 20
LATE_STEPS = 12
#: Of which every third is on another stream.
MANY_STEPS = 16

#: The buffer `a` of each step is read late; as soon as it has gone, others of its size are written.
PROGRAM = """
def step(x, total):
    a = x * 2
    torch.ops.stowage_gpu.read_late(a, total)
    b = torch.exp(x)
    c = torch.sin(b)
    d = torch.cos(c)
    return b + c + d
"""
LIBRARY = torch.library.Library("stowage_gpu", "DEF")


class LateReader:
    """The op `read_late`: adds a tensor to a total on another stream, which is not ready for a while."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.records = True
        LIBRARY.define("read_late(Tensor a, Tensor(b!) total) -> ()")
        LIBRARY.impl("read_late", self, "CompositeExplicitAutograd")

    def __call__(self, a: torch.Tensor, total: torch.Tensor) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(LATE_CYCLES)
            total.add_(a)
        if self.records:
            a.record_stream(self.stream)

    def run(self) -> tuple[Tensors, Callable]:
        """The results of many steps that nothing waits for, and the function that made them."""
        step = torch.jit.CompilationUnit(PROGRAM).step
        total = torch.zeros(SIZE, device=DEVICE)
        seen: Tensors = {"total": total}
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad():
            for number in range(LATE_STEPS):
                seen[f"result {number}"] = step(torch.full((SIZE,), float(number), device=DEVICE), total)
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.synchronize()
        return seen, step


def late_reads(part: Part, reader: LateReader) -> str:
    # From the types that a profiled run shows TorchScript would fuse the ops.
    torch._C._jit_set_num_profiled_runs(0)
    stowage.disable()
    expected, _ = reader.run()
    stowage.enable()
    found, _step = reader.run()
    busy = planned_phase()["total"]["misses"]["busy"]["allocations"]
    # Nobody holds the memory for the late reader then: shows that the reads are late enough to notice.
    reader.records = False
    careless, _careless_step = reader.run()
    part.same("late reads", lambda: difference(found, expected))
    text = "do not show" if difference(careless, expected) is None else "show"
    return f"{LATE_STEPS} steps equal, {busy} allocations found their slot held; reads without record_stream {text}"


def unplanned(training: Training, steps: int = STEPS) -> tuple[Step, Tensors]:
    """A captured step, and what it computes before stowage plans."""
    stowage.disable()
    step = training.capture()
    return step, training.run(step, steps)


def two_streams(part: Part) -> str:
    training = Training(CASE)
    step, expected = unplanned(training, MANY_STEPS)
    side = torch.cuda.Stream()
    count = 0

    def alternating(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        main = torch.cuda.current_stream()
        if count % 3 != 0:
            return step(inputs, targets)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            loss = step(inputs, targets)
        main.wait_stream(side)
        return loss

    stowage.enable()
    found = training.run(alternating, steps=MANY_STEPS)
    phase = planned_phase()
    part.same("steps on two streams", lambda: difference(found, expected))
    elsewhere = phase["total"]["misses"]["stream"]["allocations"]
    return f"{MANY_STEPS} steps equal, {phase['runs']} planned, {elsewhere} allocations of another stream"


def two_threads(part: Part, own_streams: bool) -> str:
    trainings = [Training(CASE), Training(CASE)]
    captured = [unplanned(training) for training in trainings]
    stowage.enable()
    torch.cuda.synchronize()

    def train(number: int) -> Tensors:
        stream = torch.cuda.Stream() if own_streams else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            found = trainings[number].run(captured[number][0])
            stream.synchronize()
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, range(2)))
    runs = [phase.get("runs", 0) for region in stowage.status()["regions"][-2:] for phase in region["phases"]]
    if sum(runs) == 0:
        raise Failure("no step followed a plan")
    for number in range(2):
        part.same("trainings in two threads", lambda: difference(found[number], captured[number][1]))
    return f"two trainings equal, {' and '.join(map(str, runs))} planned steps"


def cuda_graph(part: Part) -> str:
    """A step refuses to be recorded, in words, and goes on planned."""
    training = Training(CASE)
    step, expected = unplanned(training)
    stowage.enable()
    training.run(step)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            step(training.inputs, training.targets)
    except stowage.CaptureError as refusal:
        text = str(refusal)
    else:
        raise Failure("a step was recorded")
    if "a CUDA graph is being recorded" not in text:
        raise Failure(f"it refuses for another reason: {text}")
    before = planned_phase()["runs"]
    found = training.run(step)
    if planned_phase()["runs"] == before:
        raise Failure("no step followed the plan after the refusal")
    part.same("steps after the refusal", lambda: difference(found, expected))
    return f"refused ({text}); steps after it equal"


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    be_deterministic()
    stowage.set_option("poison", "1")
    stowage.set_option("min_ops", "1")
    part.attempt("record_stream with late work", NEEDS_S, lambda: late_reads(part, LateReader()))
    torch._C._jit_set_num_profiled_runs(1)
    part.attempt("steps on two streams", NEEDS_S, lambda: two_streams(part))
    part.attempt("trainings in two threads", NEEDS_S, lambda: two_threads(part, own_streams=False))
    part.attempt("trainings in two threads, each on its stream", NEEDS_S, lambda: two_threads(part, own_streams=True))
    part.attempt("a step in a CUDA graph", NEEDS_S, lambda: cuda_graph(part))


if __name__ == "__main__":
    main()
