# SPDX-License-Identifier: Apache-2.0
"""Trains small random programs without and with stowage and compares all that they show, byte by byte.

    scripts/soak [--programs N] [--seed S] [--jobs J] [--mode MODE] [--only SEED] [--replay FILE]

A program that fails is made smaller and printed; FILE may hold such a text. Under scripts/drycuda the programs run on
the device, where memory that is given out twice is what fails. Exit status 1: a program failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

TESTS = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "__mp_main__"):
    # This folder is on the path in the place of `tests`, and would hide the package of the same name.
    sys.path[0:1] = [str(TESTS), str(TESTS / "capture")]
    sys.path.append(str(TESTS.parent / "scripts"))  # where stowage is not installed

from drycuda import control  # noqa: E402
from soak.faults import FAULTS  # noqa: E402
from soak.program import MODES, Program, generate  # noqa: E402
from soak.shrink import shrink  # noqa: E402
from soak.source import write  # noqa: E402
from soak.workers import Worker  # noqa: E402

#: How many failures are looked for before the rest is left out.
MOST_FAILURES = 3


class Soak:
    """Examines programs with several workers; counts what they did and collects the seeds that failed."""

    def __init__(self, mode: str = "", fault: str = "", limit_s: float = 60.0) -> None:
        self.mode, self.fault, self.limit_s = mode, fault, limit_s
        self.device = "cuda" if control.is_present() else "cpu"
        self.count: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.failures: dict[int, str] = {}
        self._lock, self._enough = Lock(), Event()
        self._start = time.monotonic()

    def program(self, seed: int) -> Program:
        return generate(seed, self.mode, self.device)

    def run(self, seeds: Sequence[int], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._examine, [seeds[job::jobs] for job in range(jobs)]))

    def _examine(self, seeds: Sequence[int]) -> None:
        with Worker(self.limit_s, self.fault) as worker:
            for seed in seeds:
                if self._enough.is_set():
                    return
                program = self.program(seed)
                outcome = worker.examine(write(program))
                if outcome.invalid:  # torch may still be what an earlier program made it
                    worker.stop()
                    outcome = worker.examine(write(program))
                with self._lock:
                    self.count[program.mode] += 1
                    self.count["planned"] += outcome.planned_runs > 0
                    self.count["with errors"] += outcome.errors > 0
                    self.count["end torch"] += outcome.ends_torch
                    self.seconds[program.mode] += outcome.seconds
                    if outcome.failure or outcome.invalid:
                        self.failures[seed] = outcome.failure or f"cannot begin: {outcome.invalid}"
                        if len(self.failures) >= MOST_FAILURES:
                            self._enough.set()
                    if self.examined % 100 == 0:
                        print(self.summary(), file=sys.stderr, flush=True)

    @property
    def examined(self) -> int:
        return sum(self.count[mode] for mode in MODES)

    def summary(self) -> str:
        """Programs, how many followed plans and how many met errors, and the seconds of one by its mode."""
        times = ", ".join(f"{mode} {self.seconds[mode] / self.count[mode]:.2f} s" for mode in MODES if self.count[mode])
        return (f"{self.examined} programs, {self.count['planned']} planned, {self.count['with errors']} with errors, "
                f"{self.count['end torch']} that end torch without stowage, "
                f"{len(self.failures)} failed after {time.monotonic() - self._start:.0f} s ({times})")

    def smallest(self, seed: int, limit_s: float) -> tuple[Program, str]:
        """The program of a failed seed made smaller, and how that fails; as it was if it does not fail alone."""
        program = self.program(seed)
        with Worker(self.limit_s, self.fault) as worker:
            if not worker.examine(write(program)).failure:
                return program, "it does not fail alone: the failure needs the programs before it"
            program = shrink(program, lambda smaller: bool(worker.examine(write(smaller)).failure), limit_s)
            return program, worker.examine(write(program)).failure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Compares programs with and without plans.")
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="how many; default 2000")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first program; default 0")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="processes; default 2")
    parser.add_argument("--mode", choices=MODES, default="", help="for all programs; else each in its turn")
    parser.add_argument("--only", type=int, metavar="SEED", help="one program, which is printed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the text of a program")
    parser.add_argument("--shrink-s", type=float, default=120, metavar="T", help="seconds for making one smaller")
    parser.add_argument("--limit-s", type=float, default=60, metavar="T", help="seconds that a program may take")
    parser.add_argument("--fault", choices=FAULTS, default="", help="a fault in the planned runs, to test the soak")
    options = parser.parse_args(arguments)
    if options.replay:
        with Worker(options.limit_s, options.fault) as worker:
            outcome = worker.examine(options.replay.read_text())
        print(outcome.failure or outcome.invalid or "the same with plans")
        return 1 if outcome.failure or outcome.invalid else 0

    soak = Soak(options.mode, options.fault, options.limit_s)
    if options.only is not None:
        print(write(soak.program(options.only)))
        soak.run([options.only], 1)
    else:
        soak.run(range(options.seed, options.seed + options.programs), options.jobs)
    for seed, failure in sorted(soak.failures.items()):
        print(f"seed {seed}: {failure}", flush=True)
        program, still = soak.smallest(seed, options.shrink_s)
        print(f"made smaller: {still}\n{write(program)}", flush=True)
    print(soak.summary())
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
