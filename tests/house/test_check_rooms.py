# SPDX-License-Identifier: Apache-2.0
"""check_rooms passes the project and names each kind of breach, on small trees made for it."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK_ROOMS = Path(__file__).with_name("check_rooms.py")
CPP_LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
PYTHON_LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"
SOLVER_MAY = "the standard library and solver/, fmt/, nlohmann/, CLI/, zlib.h"
PROFILER_MAY = "the standard library and profiler/, fmt/, sqlite3.h, cupti"


def check(*arguments: str | Path) -> tuple[int, str]:
    result = subprocess.run([sys.executable, str(CHECK_ROOMS), *map(str, arguments)], capture_output=True, text=True)
    assert result.stderr == ""
    return result.returncode, result.stdout


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_project_keeps_its_rules():
    assert check() == (0, "")


@pytest.mark.parametrize(
    ("name", "include", "room", "may"),
    [
        ("solver/order.cpp", "<torch/script.h>", "solver/", SOLVER_MAY),
        ("solver/order.cpp", "<sqlite3.h>", "solver/", SOLVER_MAY),
        ("solver/order.h", "<cuda_runtime.h>", "solver/", SOLVER_MAY),
        ("solver/order.h", '"profiler/record.h"', "solver/", SOLVER_MAY),
        ("profiler/store.cpp", "<ATen/ATen.h>", "profiler/", PROFILER_MAY),
        ("profiler/store.cpp", '"solver/plan.h"', "profiler/", PROFILER_MAY),
        ("plugin/planned_allocator.h", "<c10/core/Allocator.h>", "plugin/planned_allocator.",
         "the standard library and plugin/planned_allocator.h, plugin/arena.h, plugin/upstream.h, plugin/counters.h, "
         "plugin/step_record.h, plugin/step_scope.h"),
        ("plugin/planned_allocator.cpp", '"plugin/region.h"', "plugin/planned_allocator.",
         "the standard library and plugin/planned_allocator.h, plugin/arena.h, plugin/upstream.h, plugin/counters.h, "
         "plugin/step_record.h, plugin/step_scope.h"),
        ("plugin/region.cpp", "<Python.h>", "plugin/",
         "the standard library and plugin/, profiler/, solver/, fmt/, nlohmann/, torch/, ATen/, c10/, "
         "cuda_runtime_api.h, kineto/"),
        ("tests/solver/test_order.cpp", '"profiler/record.h"', "tests/solver/",
         "the standard library and solver/, tests/support/, gtest/, gmock/, benchmark/, fmt/, nlohmann/, zlib.h"),
    ],
)
def test_an_include_that_the_room_must_not_know(tmp_path, name, include, room, may):
    write(tmp_path, name, f"{CPP_LICENCE}#include <vector>\n#include {include}\n")
    assert check(tmp_path) == (
        1, f"{name}:3: cannot include '{include[1:-1]}': {room} may use only {may}; move the code to a room that may\n")


def test_includes_that_are_allowed(tmp_path):
    write(tmp_path, "solver/formats.cpp",
          f'{CPP_LICENCE}#include <zlib.h>\n#include <fmt/format.h>\n#include <span>\n#include "solver/formats.h"\n')
    write(tmp_path, "profiler/store.cpp", f'{CPP_LICENCE}#include <sqlite3.h>\n#include "profiler/store.h"\n')
    write(tmp_path, "plugin/bridge.cpp",
          f'{CPP_LICENCE}#include <torch/script.h>\n#include "solver/plan.h"\n#include "profiler/record.h"\n')
    write(tmp_path, "plugin/planned_allocator.cpp",
          f'{CPP_LICENCE}#include <mutex>\n#include <sys/mman.h>\n#include "plugin/planned_allocator.h"\n')
    assert check(tmp_path) == (0, "")


@pytest.mark.parametrize("statement", ["import torch", "import json, torch.jit", "from torch import nn"])
def test_the_command_line_imports_torch(tmp_path, statement):
    module = "torch.jit" if "jit" in statement else "torch"
    write(tmp_path, "scripts/stowage/cli.py", f"{PYTHON_LICENCE}def late():\n    {statement}\n")
    assert check(tmp_path) == (
        1, f"scripts/stowage/cli.py:3: cannot import '{module}': the command line runs without torch; "
           "read what is needed from the store\n")


def test_the_package_may_import_torch_late_but_not_while_it_is_imported(tmp_path):
    late = "def enable():\n    import torch\n"
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
    write(tmp_path, "scripts/stowage/__init__.py", PYTHON_LICENCE + typing + late)
    assert check(tmp_path) == (0, "")
    guarded = "try:\n    import torch\nexcept ImportError:\n    pass\n"
    write(tmp_path, "scripts/stowage/__init__.py", PYTHON_LICENCE + guarded)
    assert check(tmp_path) == (
        1, "scripts/stowage/__init__.py:3: cannot import 'torch': the command line runs without torch; "
           "import it inside the function that needs it\n")


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        ("/".join(["", "home", "someone"]), "it is a path on one machine", "make it relative to the project"),
        ("/".join(["..", "shared"]), "it is outside the project",
         "copy what is needed into the project, with its licence"),
        (".".join(["pypi", "org"]), "it is one registry's host", "leave the choice of registry to the user's settings"),
    ],
)
def test_text_that_leans_on_one_machine(tmp_path, text, cause, fix):
    write(tmp_path, "README.md", f"# Title\n\nSee {text}.\n")
    assert check(tmp_path) == (1, f"README.md:3: cannot mention '{text}': {cause}; {fix}\n")


def test_build_folders_and_binary_files_are_left_alone(tmp_path):
    path_on_one_machine = "/".join(["", "root", "torch"])
    write(tmp_path, "build/dev/CMakeCache.txt", path_on_one_machine)
    write(tmp_path, ".venv/bin/activate", path_on_one_machine)
    (tmp_path / "graph.gz").write_bytes(b"\x1f\x8b\xff" + path_on_one_machine.encode())
    assert check(tmp_path) == (0, "")


@pytest.mark.parametrize("name", ["solver/plan.h", "scripts/demo", "tests/CMakeLists.txt", "profiler/schema.sql"])
def test_a_source_without_its_licence_line(tmp_path, name):
    write(tmp_path, name, "#!/bin/sh\n" if name == "scripts/demo" else "\n")
    assert check(tmp_path) == (
        1, f"{name}:1: cannot tell the licence: no SPDX line; begin the file with a comment "
           "'SPDX-License-Identifier: Apache-2.0'\n")
