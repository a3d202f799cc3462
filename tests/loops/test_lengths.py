# SPDX-License-Identifier: Apache-2.0
"""Sequences of many lengths, accumulation and evaluation in one loop: each is a phase of its own in one arena."""

import random
from statistics import median

import pytest
import stowage
from loops.training import Training, assert_same, planned_share

LENGTHS = tuple(range(16, 64, 4))
STEPS = 200
ACCUMULATION = 4
EVALUATION_EVERY = 5


@pytest.fixture(autouse=True)
def metered():
    stowage.set_option("meter", "1")
    yield
    stowage.set_option("meter", "0")


@pytest.mark.slow
def test_lengths_drawn_from_twelve_values():
    def loop(training: Training) -> None:
        lengths = random.Random(1)
        for step in range(STEPS):
            for index in range(ACCUMULATION):
                training.micro_step(lengths.choice(LENGTHS), index, ACCUMULATION)
            if step % EVALUATION_EVERY == EVALUATION_EVERY - 1:
                training.evaluate(lengths.choice(LENGTHS))
            ends.append(len(training.turns))

    ends: list[int] = []
    turns = assert_same(loop)
    ends = ends[STEPS:]  # of the planned training

    half = ends[STEPS // 2 - 1]
    known = [turn for turn in turns[half:] if turn.met >= 2]
    assert planned_share(known) >= 0.95
    for part in ("first", "middle", "last"):
        assert planned_share([turn for turn in known if turn.kind[:2] == ("training", part)]) >= 0.95, part

    # Reserved is the one arena, and what is live besides. In the second half nothing is added to it: not to the arena,
    # nor, from one quarter of it to the next, to the peaks of steps whose phases have been met. A step now and then finds
    # slots taken, as long as a phase that is rarely met has not shown which of its tensors are kept.
    assert len({turn.arena_bytes for turn in turns[half:]}) == 1
    assert max(turn.peak_bytes for turn in turns[half:]) <= max(turn.peak_bytes for turn in turns[:half])
    peaks = [max(turn.peak_bytes for turn in turns[begin:end] if turn.met >= 2)
             for begin, end in zip(ends[STEPS // 2 - 1:], ends[STEPS // 2:])]
    assert len(peaks) == STEPS // 2
    quarters = [median(peaks[begin:begin + STEPS // 8]) for begin in range(0, len(peaks), STEPS // 8)]
    assert max(quarters) <= 1.01 * min(quarters), quarters
    assert max(peaks) <= 1.3 * min(peaks), (min(peaks), max(peaks))
