# SPDX-License-Identifier: Apache-2.0
"""A project of its own finds the installed solver with find_package, links it and plans with it."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEV_BUILD = ROOT / "build/dev"
CONSUMER = Path(__file__).with_name("consumer")


def run(*command: str | Path) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> Path:
    assert (DEV_BUILD / "CMakeCache.txt").exists(), "no dev build; run scripts/test install"
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", DEV_BUILD, "--prefix", prefix)
    return prefix


def test_a_consumer_plans_with_the_installed_solver(prefix, tmp_path):
    run("cmake", "-S", CONSUMER, "-B", tmp_path, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    # 17 MiB and 10 MiB: the sums are in consumer/main.cpp.
    assert run(tmp_path / "consumer") == "program peak 17825792 B, planned peak 10485760 B, optimal\n"


def test_a_consumer_of_another_version_is_refused(prefix, tmp_path):
    listfile = (CONSUMER / "CMakeLists.txt").read_text().replace("stowage 0.1", "stowage 9.9")
    (tmp_path / "CMakeLists.txt").write_text(listfile)
    result = subprocess.run(["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), "-G", "Ninja",
                             f"-DCMAKE_PREFIX_PATH={prefix}"], capture_output=True, text=True)
    assert result.returncode != 0
    assert 'compatible with requested version "9.9"' in result.stderr


def test_what_is_installed(prefix):
    headers = {path.name for path in (prefix / "include/stowage/solver").iterdir()}
    assert {"problem.h", "plan.h", "solve.h", "validate.h"} <= headers
    assert [path.name for path in (prefix / "include/stowage").iterdir()] == ["solver"]
    assert (prefix / "bin/stowage-solve").exists()
    assert list(prefix.rglob("libstowage.so")) and list(prefix.rglob("libstowage_solver.a"))
    # Nothing of this machine is written into the package.
    for config in prefix.rglob("*.cmake"):
        assert str(ROOT) not in config.read_text(), config


def test_each_installed_header_stands_alone(prefix, tmp_path):
    include = prefix / "include/stowage"
    headers = sorted(path.relative_to(include) for path in include.rglob("*.h"))
    source = tmp_path / "alone.cpp"
    for header in headers:
        source.write_text(f'#include "{header}"\n')
        run("c++", "-std=c++20", "-fsyntax-only", "-I", include, source)
