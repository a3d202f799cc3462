# SPDX-License-Identifier: Apache-2.0
"""Checks stowage on a real GPU in five minutes at most; scripts/gpu_check calls it.

Each part is a process of its own, with a limit of time; what a part leaves unused the later ones may take. Writes
out/gpu-check.json and out/gpu-check.txt, anew after every part. Needs nothing from the network.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What parts import: the benchmarks' models, the cases of the CPU's tests of reuse, and the package's source.
FOLDERS = ("tests", "scripts/benchmarks", "tests/plugin", "tests/capture")
sys.path.insert(0, str(ROOT / "tests"))

from gpu.outcome import Outcome, first_line, read_line  # noqa: E402
from gpu.report import PartReport, Report, line  # noqa: E402

LIMIT_S = 300
#: Of the limit, for ending a part that hangs and for writing the report.
SPARE_S = 8


@dataclass(frozen=True)
class Part:
    name: str
    module: str
    limit_s: float  # within LIMIT_S
    arguments: tuple[str, ...] = ()


PARTS = (
    Part("environment", "environment", 22),
    Part("bit-equality", "equality", 72),
    Part("memory", "memory", 46),
    Part("step-time", "step_time", 38),
    Part("streams", "streams", 26),
    Part("sizes", "sizes", 22),
    Part("profiler", "profiling", 14, ("around",)),
    Part("profiler-after", "profiling", 14, ("after",)),
    Part("pointwise", "pointwise", 38),
)


def limit_of(part: Part, later: list[Part], left_s: float, scale: float) -> float:
    """Seconds for `part`: all that is left but for the later parts' own limits, which are `scale` times as long."""
    return max(left_s - scale * sum(each.limit_s for each in later), min(left_s, scale * part.limit_s))


def run_part(part: Part, limit_s: float, environment: dict[str, str]) -> PartReport:
    """Runs a part to its end or its limit, and shows its outcomes as they come."""
    report = PartReport(part.name, limit_s)
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        # The part begins nothing that it cannot end by its deadline. In a session of its own, all its processes can be
        # ended at once.
        command = [sys.executable, "-m", f"gpu.{part.module}", str(start + limit_s - 3), *part.arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=errors, text=True, start_new_session=True)
        old = signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            for text in process.stdout:
                outcome = read_line(text)
                if outcome is not None:
                    report.outcomes.append(outcome)
                    say(f"  {line(outcome)}")
            status = process.wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        report.seconds = time.monotonic() - start
        errors.seek(0)
        ending = how_it_ended(status, report.seconds >= limit_s, errors.read())
    if ending is not None:
        ending.dry = any(outcome.dry for outcome in report.outcomes)
        report.outcomes.append(ending)
        say(f"  {line(ending)}")
    return report


def how_it_ended(status: int, out_of_time: bool, errors: str) -> Outcome | None:
    """What a part's exit says besides its own outcomes; None if all is well."""
    if status == 0:
        return None
    if out_of_time:
        return Outcome("end of the part", "failed", "it was ended at its limit: a check hangs, or takes far longer "
                       "than it says")
    said = [text for text in errors.splitlines() if text.strip() and not text.startswith(("frame #", " "))]
    last_words = first_line(said[-1]) if said else "it says nothing"
    return Outcome("end of the part", "failed", f"exit status {status}: {last_words}")


def run_all(parts: list[Part], limit_s: float, environment: dict[str, str], report: Report, out: Path) -> None:
    start, scale = time.monotonic(), (limit_s - SPARE_S) / (LIMIT_S - SPARE_S)
    for number, part in enumerate(parts):
        left_s = limit_s - SPARE_S - (time.monotonic() - start)
        if left_s < 5:
            skipped = Outcome(part.name, "skipped", f"no time: {max(left_s, 0):.0f} s left", dry=report.is_dry())
            report.parts.append(PartReport(part.name, 0, outcomes=[skipped]))
            say(f"{part.name}\n  {line(skipped)}")
        else:
            part_limit_s = limit_of(part, parts[number + 1:], left_s, scale)
            say(f"{part.name}: {part_limit_s:.0f} s at most")
            report.parts.append(run_part(part, part_limit_s, environment))
        report.seconds = time.monotonic() - start
        write(report, out)


def write(report: Report, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("gpu-check.json", json.dumps(report.to_json(), indent=2) + "\n"),
                       ("gpu-check.txt", report.to_text())):
        unfinished = out / f"{name}.part"
        unfinished.write_text(text)
        unfinished.replace(out / name)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_dry(report: Report) -> int:
    sys.path += [str(ROOT / folder) for folder in FOLDERS]
    from gpu.memory import write_dry_figures

    if not report.is_dry() or not report.succeeded():
        say("cannot write dry CUDA's figures: not measured on dry CUDA, or something failed; use scripts/drycuda")
        return 1
    write_dry_figures([asdict(outcome) for outcome in report.outcomes()], "dry CUDA")
    return 0


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", default=names, help=", ".join(names))
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="of the whole (default: 300)")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder of the report (default: out)")
    parser.add_argument("--write-dry", action="store_true", help="on dry CUDA: keep its figures for later comparison")
    options = parser.parse_args()
    if options.limit <= SPARE_S:
        parser.error(f"argument --limit: {SPARE_S} s are for the report alone, found {options.limit:g}")
    chosen = ["memory"] if options.write_dry else options.only
    paths = [*(str(ROOT / folder) for folder in FOLDERS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore"}
    report = Report(shlex.join(["scripts/gpu_check", *sys.argv[1:]]), options.limit)
    run_all([part for part in PARTS if part.name in chosen], options.limit, environment, report, options.out)
    print(report.summary())
    say(f"wrote {options.out / 'gpu-check.json'} and {options.out / 'gpu-check.txt'}")
    if options.write_dry:
        return write_dry(report)
    return 0 if report.succeeded() else 1


if __name__ == "__main__":
    sys.exit(main())
