# SPDX-License-Identifier: Apache-2.0
"""Plans every step and every hard layout of tests/data, beside minimalloc where it is there.

Times are those of whole processes, for both programs. Where minimalloc takes part, the two run in turn on each layout,
and who began goes second the next time.
"""

import argparse
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.large_step import write_large_step  # noqa: E402: tests lie beside scripts, in no package

CAPACITY_BYTES = 1048576


@dataclass(frozen=True)
class OrderRow:
    step: str
    reuse: bool
    ops: int
    status: str
    program_peak_bytes: int
    peak_bytes: int
    bound_bytes: int
    arena_bytes: int
    seconds: float


@dataclass(frozen=True)
class LayoutRow:
    layout: str
    status: str
    height_bytes: int
    bound_bytes: int
    seconds: float
    minimalloc_solved: bool | None = None
    minimalloc_seconds: float | None = None

    @property
    def solved(self) -> bool:
        return self.status in ("optimal", "feasible")


@dataclass(frozen=True)
class Timed:
    exit_code: int
    output: str
    errors: str
    seconds: float


def run(*command: object) -> Timed:
    start = time.perf_counter()
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return Timed(result.returncode, result.stdout, result.stderr, time.perf_counter() - start)


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.repetitions = range(options.repetitions)
        self.orders: list[OrderRow] = []
        self.layouts: list[LayoutRow] = []

    def solve(self, *arguments: object) -> tuple[dict, float]:
        """What `stowage-solve` says, and the least time of all repetitions."""
        results = [self.solve_once(*arguments) for _ in self.repetitions]
        return results[0][0], min(seconds for _, seconds in results)

    def solve_once(self, *arguments: object) -> tuple[dict, float]:
        result = run(self.options.solver, *arguments, "--json")
        if not result.output:
            sys.exit(f"cannot go on: {result.errors.strip() or f'exit code {result.exit_code}'}")
        return json.loads(result.output), result.seconds

    def order(self, path: Path, reuse: bool) -> None:
        """Orders a step, and lays out the buffers of that order once more on their own."""
        buffers = self.folder / "buffers.csv"
        choice = [] if reuse else ["--no-reuse"]
        planned, seconds = self.solve("order", path, "--buffers", buffers, "--force", *choice)
        self.orders.append(OrderRow(planned["name"], reuse, planned["ops"], planned["status"],
                                    planned["program_peak_bytes"], planned["peak_bytes"], planned["bound_bytes"],
                                    planned["arena_bytes"], seconds))
        placed, seconds = self.solve("layout", buffers, "--deadline-ms", self.options.deadline_ms)
        name = planned["name"] if reuse else f"{planned['name']}, no reuse"
        self.layouts.append(LayoutRow(name, placed["status"], placed["height_bytes"], placed["bound_bytes"], seconds))

    def challenge(self, path: Path) -> None:
        """A layout that is known to fit, and hard."""
        placed: dict = {}
        seconds: list[float] = []
        minimalloc: list[Timed] = []
        turns = ["stowage", "minimalloc"] if self.options.minimalloc else ["stowage"]
        for _ in self.repetitions:
            for turn in turns:
                if turn == "minimalloc":
                    minimalloc.append(self.minimalloc_once(path))
                    continue
                placed, elapsed = self.solve_once("layout", path, "--capacity", CAPACITY_BYTES, "--deadline-ms",
                                                  self.options.deadline_ms)
                seconds.append(elapsed)
            turns.reverse()
        self.layouts.append(LayoutRow(
            path.name.split(".")[0], placed["status"], placed["height_bytes"], placed["bound_bytes"], min(seconds),
            all(result.exit_code == 0 for result in minimalloc) if minimalloc else None,
            min((result.seconds for result in minimalloc), default=None)))

    def minimalloc_once(self, path: Path) -> Timed:
        output = self.folder / "minimalloc.csv"
        output.unlink(missing_ok=True)
        limit = f"--timeout={self.options.deadline_ms / 1000:g}s"
        result = run(self.options.minimalloc, f"--capacity={CAPACITY_BYTES}", f"--input={path}", f"--output={output}",
                     limit)
        return result if output.exists() else Timed(result.exit_code or 1, "", result.errors, result.seconds)


def mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.2f}"


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def order_table(rows: list[OrderRow]) -> Table:
    table = Table(title="Orders, MiB")
    for column in ("step", "reuse", "status"):
        table.add_column(column)
    for column in ("ops", "program", "planned", "bound", "arena", "of program", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row.step, "yes" if row.reuse else "no", row.status, str(row.ops), mib(row.program_peak_bytes),
                      mib(row.peak_bytes), mib(row.bound_bytes), mib(row.arena_bytes),
                      f"{row.peak_bytes / row.program_peak_bytes:.4f}", f"{row.seconds:.3f}")
    for reuse in (True, False):
        group = [row for row in rows if row.reuse == reuse]
        if not group:
            continue
        optimal = sum(row.status == "optimal" for row in group)
        sums = [mib(sum(getattr(row, field) for row in group))
                for field in ("program_peak_bytes", "peak_bytes", "bound_bytes", "arena_bytes")]
        ratio = geometric_mean([row.peak_bytes / row.program_peak_bytes for row in group])
        table.add_section()
        table.add_row(f"sum of {len(group)}", "yes" if reuse else "no", f"{optimal} optimal",
                      str(sum(row.ops for row in group)), *sums, f"{ratio:.4f}",
                      f"{sum(row.seconds for row in group):.3f}")
    table.caption = "The last rows: sums, and the geometric mean of planned over program."
    return table


def layout_table(rows: list[LayoutRow]) -> Table:
    table = Table(title="Layouts")
    for column in ("layout", "status"):
        table.add_column(column)
    for column in ("height B", "bound B", "over bound", "seconds", "minimalloc", "its seconds", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        both = row.minimalloc_seconds is not None
        table.add_row(row.layout, row.status, str(row.height_bytes), str(row.bound_bytes), over_bound(row),
                      f"{row.seconds:.3f}", ("solved" if row.minimalloc_solved else "not solved") if both else "",
                      f"{row.minimalloc_seconds:.3f}" if both else "",
                      f"{row.seconds / row.minimalloc_seconds:.3f}" if solved_by_both(row) else "")
    compared = [row for row in rows if row.minimalloc_seconds is not None]
    if compared:
        ratios = [row.seconds / row.minimalloc_seconds for row in compared if solved_by_both(row)]
        solved = sum(row.solved for row in compared)
        table.add_section()
        table.add_row(f"sum of {len(compared)}", f"{solved} solved", "", "", "",
                      f"{sum(row.seconds for row in compared):.3f}",
                      f"{sum(bool(row.minimalloc_solved) for row in compared)} solved",
                      f"{sum(row.minimalloc_seconds for row in compared):.3f}",
                      f"{geometric_mean(ratios):.3f}" if ratios else "")
        table.caption = "The last row: sums, and the geometric mean of the ratios of seconds, where both solved it."
    return table


def solved_by_both(row: LayoutRow) -> bool:
    return row.solved and bool(row.minimalloc_solved)


def over_bound(row: LayoutRow) -> str:
    return f"{row.height_bytes / row.bound_bytes - 1:.4%}" if row.height_bytes and row.bound_bytes else ""


def machine() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines()
             if line.startswith("model name")] if info.exists() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} CPUs"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench solver", description=__doc__.splitlines()[0])
    parser.add_argument("--minimalloc", type=Path, metavar="PATH", help="its program, run on the hard layouts too")
    parser.add_argument("--large", action="store_true", help="with a generated step of 50,000 ops")
    parser.add_argument("--match", default="", help="only steps and layouts whose name holds this")
    parser.add_argument("--repetitions", type=int, default=3, help="of which the fastest counts (default: 3)")
    parser.add_argument("--deadline-ms", type=int, default=60_000, help="for each layout, of both programs")
    parser.add_argument("--solver", type=Path, default=Path(sys.executable).with_name("stowage-solve"),
                        help="the program to measure (default: what scripts/setup installed)")
    parser.add_argument("--out", type=Path, default=ROOT / "out/bench-solver.json", help="where the results go")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error(f"cannot measure {options.repetitions} repetitions; give --repetitions 1 or more")
    for program, fix in ((options.solver, "run scripts/setup"), (options.minimalloc, "build it or leave it out")):
        if program is not None and not os.access(program, os.X_OK):
            parser.error(f"cannot run '{program}': no such program; {fix}")
    return options


def main() -> None:
    options = parse_options()
    steps = [path for path in sorted((ROOT / "tests/data/graphs").glob("*.json.gz")) if options.match in path.name]
    layouts = [path for path in sorted((ROOT / "tests/data/layout").glob(f"?.{CAPACITY_BYTES}.csv"))
               if options.match in path.name]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        if options.large:
            write_large_step(Path(folder) / "large.json.gz")
            steps.append(Path(folder) / "large.json.gz")
        if not steps and not layouts:
            sys.exit(f"cannot measure anything: no name in tests/data holds '{options.match}'")
        jobs = [(path.name, bench.order, (path, reuse)) for reuse in (True, False) for path in steps]
        jobs += [(path.name, bench.challenge, (path,)) for path in layouts]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        notes = Console(stderr=True)
        with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
            task = progress.add_task("", total=len(jobs))
            for name, job, arguments in jobs:
                progress.update(task, description=name)
                job(*arguments)
                progress.advance(task)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if bench.orders:
        console.print(order_table(bench.orders))
    console.print(layout_table(bench.layouts))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({
        "machine": machine(), "command": shlex.join(["scripts/bench", "solver", *sys.argv[1:]]),
        "repetitions": options.repetitions, "deadline_ms": options.deadline_ms, "capacity_bytes": CAPACITY_BYTES,
        "orders": [asdict(row) for row in bench.orders], "layouts": [asdict(row) for row in bench.layouts]},
        indent=2) + "\n")
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
