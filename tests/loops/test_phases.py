# SPDX-License-Identifier: Apache-2.0
"""Loops whose steps are of several kinds: each kind is a phase, found again whatever came before."""

import random

import pytest
import stowage
import torch
from loops.training import Training, Turn, assert_same, planned_share, tokens
from torch.nn.functional import cross_entropy

ACCUMULATION = 4


@pytest.fixture(autouse=True)
def options():
    stowage.set_option("meter", "1")
    yield
    stowage.set_option("meter", "0")


def phases() -> list[dict]:
    return stowage.status()["steps"][0]["phases"]


def digests(turns: list[Turn], *kind: str) -> set[str]:
    return {turn.phase["digest"] for turn in turns if turn.kind[:len(kind)] == kind and turn.met >= 2}


def misses(turn: Turn) -> dict[str, int]:
    return {why: count["bytes"] for why, count in turn.phase["last"]["misses"].items() if count["allocations"]}


def test_case_12_batches_of_varying_length():
    lengths = (64, 96, 80, 128, 112)
    unseen = 72

    def loop(training: Training) -> None:
        drawn = random.Random(2)
        for step in range(80):
            training.micro_step(drawn.choice(lengths))
            if step == 59:
                training.micro_step(unseen)

    turns = assert_same(loop)
    known = [turn for turn in turns if turn.met >= 2]
    assert planned_share(known) >= 0.95
    # One phase a length: the first of all makes the optimizer's state, so it is none of them.
    assert len(digests(turns, "training")) == len(lengths)

    (new,) = [turn for turn in turns if turn.kind[2] == unseen]
    after = turns[turns.index(new) + 1:]
    assert new.planned_bytes < 0.5 * new.bytes  # most went upstream, and what was like another phase did not
    assert new.phase["state"] == "profiling" and new.phase["seen"] == 1
    assert planned_share(after) >= 0.95

    # Flat: the arena is that of the longest, and no known step needs more beside it than another.
    assert len({turn.arena_bytes for turn in turns[40:]}) == 1
    peaks = [turn.peak_bytes for turn in turns[40:] if turn.met >= 2]
    assert max(peaks) <= 1.1 * min(peaks)
    assert max(peaks) <= new.peak_bytes


@pytest.mark.parametrize("window", [1, 2, 3])
def test_case_13_profiling_waits_for_the_steady_state(window):
    """After one, two or three steps of the loop: what has been met twice is planned, and nothing else."""

    def loop(training: Training) -> None:
        for _ in range(window):
            for index in range(ACCUMULATION):
                training.micro_step(32, index, ACCUMULATION)

    turns = assert_same(loop)
    by_state = {phase["digest"]: phase["state"] for phase in phases()}
    last = [turn for turn in turns if turn.kind[1] == "last"]
    # The first update makes the optimizer's state: a phase that never comes again.
    assert by_state[last[0].phase["digest"]] == "profiling"
    # The others are alike, from the second on; when that has come twice it is planned.
    assert len({turn.phase["digest"] for turn in last[1:]}) == min(window - 1, 1)
    if window > 1:
        assert by_state[last[1].phase["digest"]] == ("planned" if window == 3 else "profiling")
    assert all(phase["seen"] >= 2 for phase in phases() if phase["state"] == "planned")


def test_case_13_accumulation_and_evaluation():
    def loop(training: Training) -> None:
        for step in range(25):
            for index in range(ACCUMULATION):
                training.micro_step(32, index, ACCUMULATION)
            if step % 5 == 4:
                training.evaluate(32)

    turns = assert_same(loop)
    parts = {part: digests(turns, "training", part) for part in ("first", "middle", "last")}
    parts["evaluation"] = digests(turns, "evaluation")
    assert all(len(found) == 1 for found in parts.values()), parts
    # The first micro-step and the middle ones make the same allocations: one phase, planned for the longer of their
    # lifetimes. The update and the evaluation are phases of their own.
    assert parts["first"] == parts["middle"]
    assert len(set.union(*parts.values())) == 3, parts

    # A step follows its own plan: an evaluation takes no position of it, before it or in it.
    late = turns[len(turns) // 2:]
    assert {turn.kind[0] for turn in late} == {"training", "evaluation"}
    for turn in late:
        assert turn.planned_bytes >= 0.95 * turn.bytes, (turn.kind, misses(turn))
        if turn.kind[0] == "evaluation":
            assert misses(turn) == {}


def test_last_batch_of_an_epoch_is_short():
    def loop(training: Training) -> None:
        for _ in range(6):
            for _ in range(5):
                training.micro_step(24)
            training.micro_step(24, batch=3)

    turns = assert_same(loop)
    short = [turn for turn in turns if turn.kind[-1] == 3]
    assert [turn.planned_bytes > 0.95 * turn.bytes for turn in short[2:]] == [True] * 4
    assert len(digests(short, "training")) == 1 and digests(short, "training").isdisjoint(
        digests([turn for turn in turns if turn.kind[-1] != 3], "training"))
    # Only the steps after a short batch, which left other gradients behind, may find a slot taken.
    long = [turn for turn in turns if turn.kind[-1] != 3 and turn.met >= 3]
    assert planned_share(long) >= 0.99


@pytest.mark.parametrize("first_elements", [0, 1000], ids=["first-differs", "first-alike"])
def test_steps_that_never_repeat_are_left_alone(first_elements):
    """After eight of them one line says why; training goes on, and later steps that do repeat get their plan."""
    lengths = list(range(30, 46))
    steady = 64

    def loop(training: Training) -> None:
        for length in [*lengths, *[steady] * 6]:
            x, y = tokens(length, 4)
            with training.turn(length):
                weight = torch.ones(first_elements).sum()
                training.optimizer.zero_grad()
                loss = cross_entropy(training.model(x), y) + weight
                loss.backward()
                training.optimizer.step()
            training.seen.add(loss)

    before = len(stowage.status()["notes"])
    turns = assert_same(loop)
    about_steps = [note for note in stowage.status()["notes"][before:] if note.startswith("steps")]
    assert len(about_steps) == 1, about_steps
    assert "are not planned: no two of 8 were alike: " in about_steps[0]
    assert sum(turn.planned_bytes for turn in turns if turn.kind != (steady,)) == 0
    assert planned_share([turn for turn in turns if turn.kind == (steady,) and turn.met >= 2]) >= 0.95
