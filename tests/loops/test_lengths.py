# SPDX-License-Identifier: Apache-2.0
"""Sequences of many lengths, accumulation and evaluation in one loop: each is a phase of its own in one arena."""

import random

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

    known = [turn for turn in turns if turn.met >= 2]
    assert planned_share(known) >= 0.95
    for part in ("first", "middle", "last"):
        assert planned_share([turn for turn in known if turn.kind[:2] == ("training", part)]) >= 0.95, part

    # Reserved is the one arena, and what is live besides. In the second half nothing is added to it: not to the arena,
    # nor at the peak of a step whose phases are known, but for a tensor here and there whose slot was still taken.
    half = ends[STEPS // 2 - 1]
    assert len({turn.arena_bytes for turn in turns[half:]}) == 1
    assert max(turn.peak_bytes for turn in turns[half:]) <= max(turn.peak_bytes for turn in turns[:half])
    peaks = sorted(max(turn.peak_bytes for turn in turns[begin:end] if turn.met >= 2)
                   for begin, end in zip(ends[STEPS // 2 - 1:], ends[STEPS // 2:]))
    assert len(peaks) == STEPS // 2
    assert peaks[STEPS * 4 // 10] <= 1.01 * peaks[0] and peaks[-1] <= 1.1 * peaks[0]
