# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of stowage and adds up their results; scripts/test calls it after scripts/setup.

Every runner's own output is shown as it comes. The last line is the sum: "N passed, N failed, N skipped".
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
JOBS = str(os.cpu_count() or 1)
SOURCE_ROOMS = ("solver", "profiler", "plugin")
# Of the plugin.
TORCH_FREE = ("arena.cpp", "arenas.cpp", "counters.cpp", "planned_allocator.cpp", "quarantine.cpp", "sessions.cpp", "step_allocation.cpp",
              "step_scope.cpp")
# What each sanitizer preset runs; the solver has a single thread.
SANITIZERS = {"asan": SOURCE_ROOMS, "tsan": ("profiler", "plugin")}
# Rooms whose Python tests leave nothing behind in their process: files of them run on all cores.
PARALLEL_ROOMS = ("cli", "fuzz", "report", "soak", "solver", "tutorial")
# Rooms whose Python tests run on dry CUDA, in a process of their own, and where the dev build has it.
DRY_ROOMS = ("cuda", "drycuda")
DRY_CUDA = BUILD / "dev/tests/drycuda"
# Rooms whose Python tests look at the dev build.
NEEDS_DEV_BUILD = ("install", *DRY_ROOMS)


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


START = time.monotonic()


def say(text: str) -> None:
    print(f"\n== {text} (after {time.monotonic() - START:.0f} s)", flush=True)


def run(*command: str | Path) -> bool:
    return subprocess.run([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0


def read_junit(path: Path, succeeded: bool) -> Tally:
    """Counts the cases in a JUnit file. A runner that failed and names no failed case has itself failed."""
    tally = Tally()
    if path.exists():
        for case in ElementTree.parse(path).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                tally.failed += 1
            elif case.find("skipped") is not None or case.find("disabled") is not None:
                tally.skipped += 1
            else:
                tally.passed += 1
    if not succeeded and tally.failed == 0:
        tally.failed = 1
    return tally


def check_format() -> Tally:
    say("clang-format")
    if not shutil.which("clang-format"):
        print("skipped: clang-format is not installed")
        return Tally(skipped=1)
    sources = [path for room in (*SOURCE_ROOMS, "benchmarks", "tests") for path in sorted((ROOT / room).rglob("*"))
               if path.suffix in (".h", ".cpp")]
    succeeded = run("clang-format", "--dry-run", "--Werror", *sources)
    return Tally(passed=1) if succeeded else Tally(failed=1)


def check_tidy() -> Tally:
    """Runs clang-tidy on the sources that include no torch header: the others take minutes. A source that passed is
    looked at again only when it, a header or the rules have changed."""
    say("clang-tidy")
    if not shutil.which("clang-tidy"):
        print("skipped: clang-tidy is not installed")
        return Tally(skipped=1)
    if not (BUILD / "dev/compile_commands.json").exists() and not run("cmake", "--preset", "dev"):
        return Tally(failed=1)
    headers = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for room in SOURCE_ROOMS:
        for header in sorted((ROOT / room).glob("*.h")):
            headers.update(header.read_bytes())
    stamps = BUILD / "tidy"
    stamps.mkdir(parents=True, exist_ok=True)

    def tidy(source: Path) -> bool:
        digest = headers.copy()
        digest.update(source.read_bytes())
        stamp = stamps / f"{source.parent.name}-{source.name}.sha256"
        if stamp.exists() and stamp.read_text() == digest.hexdigest():
            return True
        result = subprocess.run(["clang-tidy", "--quiet", "-p", str(BUILD / "dev"), str(source)], cwd=ROOT,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        succeeded = result.returncode == 0
        print(f"{source.relative_to(ROOT)}: {'ok' if succeeded else 'failed'}", flush=True)
        if succeeded:
            stamp.write_text(digest.hexdigest())
        else:
            print(result.stdout + result.stderr, flush=True)
        return succeeded

    # Without CUDA, what reads CUPTI is not compiled.
    commands = json.loads((BUILD / "dev/compile_commands.json").read_text())
    compiled = {Path(command["file"]).resolve() for command in commands}
    sources = [*sorted((ROOT / "solver").glob("*.cpp")), *sorted((ROOT / "profiler").glob("*.cpp")),
               *(ROOT / "plugin" / name for name in TORCH_FREE)]
    sources = [source for source in sources if source in compiled]
    with ThreadPoolExecutor(int(JOBS)) as pool:
        succeeded = all(list(pool.map(tidy, sources)))
    return Tally(passed=1) if succeeded else Tally(failed=1)


def build(preset: str) -> bool:
    say(f"build ({preset})")
    return run("cmake", "--preset", preset) and run("cmake", "--build", "--preset", preset)


def run_ctest(preset: str, rooms: list[str], expression: str | None) -> Tally:
    say(f"ctest ({preset})")
    junit = BUILD / f"{preset}-results.xml"
    junit.unlink(missing_ok=True)
    command = ["ctest", "--preset", preset, "--parallel", JOBS, "--no-tests=ignore", "--output-junit", junit,
               "--label-regex", f"^({'|'.join(rooms)})$"]
    if expression:
        command += ["--tests-regex", expression]
    if sys.stdout.isatty():
        command.append("--progress")
    return read_junit(junit, run(*command))


def run_pytest(title: str, rooms: list[str], expression: str | None, fast: bool, *,
               launcher: tuple[str | Path, ...] = (), options: tuple[str, ...] = ()) -> Tally:
    say(title)
    junit = BUILD / f"{title.replace(' ', '-').lower()}-results.xml"
    junit.unlink(missing_ok=True)
    command = [*launcher, sys.executable, "-m", "pytest", "--junit-xml", junit, "--durations=5", "--durations-min=5", *options]
    if fast:
        command += ["-m", "not slow"]
    if expression:
        command += ["-k", expression]
    succeeded = run(*command, *(ROOT / "tests" / room for room in rooms))
    no_test_matched = expression is not None and junit.exists() and not list(ElementTree.parse(junit).iter("testcase"))
    return read_junit(junit, succeeded or no_test_matched)


def run_dry_pytest(rooms: list[str], expression: str | None, fast: bool) -> Tally:
    if not (DRY_CUDA / "libdrycuda.so").exists():
        say("pytest on dry CUDA")
        print("skipped: torch was not built for CUDA, so that there is no dry CUDA")
        return Tally(skipped=1)
    launcher = ("env", f"DRYCUDA_DIR={DRY_CUDA}", "DRYCUDA_DEVICES=2", ROOT / "scripts/drycuda")
    return run_pytest("pytest on dry CUDA", rooms, expression, fast, launcher=launcher)


def cpp_rooms() -> list[str]:
    return [path.parent.name for path in sorted((ROOT / "tests").glob("*/CMakeLists.txt"))]


def python_rooms() -> list[str]:
    return sorted({path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")})


def main() -> int:
    known = sorted({*cpp_rooms(), *python_rooms()})
    parser = argparse.ArgumentParser(prog="scripts/test", description="Runs every test, or those of the rooms named.")
    parser.add_argument("--fast", action="store_true", help="without sanitizers, clang-tidy and slow Python tests")
    parser.add_argument("-k", metavar="EXPR", help="only tests that match: a regex for C++, pytest's -k for Python")
    parser.add_argument("rooms", metavar="ROOM", nargs="*", help=", ".join(known))
    options = parser.parse_args()
    for room in options.rooms:
        if room not in known:
            parser.error(f"cannot test '{room}': no such room; choose from {', '.join(known)}")
    chosen = options.rooms or known
    cpp = [room for room in chosen if room in cpp_rooms()]
    python = [room for room in chosen if room in python_rooms()]

    BUILD.mkdir(exist_ok=True)
    lock = open(BUILD / "test.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another scripts/test to finish", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", JOBS)

    static_checks = "house" in chosen and not options.k
    total = Tally()
    if static_checks:
        total += check_format()
    if cpp or any(room in NEEDS_DEV_BUILD for room in chosen):
        if not build("dev"):
            total += Tally(failed=1)
        elif cpp:
            total += run_ctest("dev", cpp, options.k)
    if static_checks and not options.fast:
        total += check_tidy()
    parallel = [room for room in python if room in PARALLEL_ROOMS]
    plain = [room for room in python if room not in (*DRY_ROOMS, *PARALLEL_ROOMS)]
    dry = [room for room in python if room in DRY_ROOMS]
    if parallel:
        total += run_pytest("pytest in parallel", parallel, options.k, options.fast,
                            options=("--numprocesses", JOBS, "--dist", "loadfile"))
    if plain:
        total += run_pytest("pytest", plain, options.k, options.fast)
    if dry:
        total += run_dry_pytest(dry, options.k, options.fast)
    for preset, rooms in SANITIZERS.items():
        checked = [room for room in cpp if room in rooms]
        if checked and not options.fast:
            total += run_ctest(preset, checked, options.k) if build(preset) else Tally(failed=1)

    say("done")
    print(total, flush=True)
    if total.passed + total.failed == 0:
        print("cannot report success: no test ran; loosen -k or name other rooms", file=sys.stderr)
        return 1
    return 1 if total.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
