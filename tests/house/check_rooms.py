# SPDX-License-Identifier: Apache-2.0
"""Checks that each room of the project uses only what it may, and that no file leans on one machine.

    python tests/house/check_rooms.py [ROOT]

Prints a line for each breach, "FILE:LINE: cannot VERB OBJECT: CAUSE; FIX", and exits 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Room:
    """What the C++ files under a path may include, by prefix; the standard library always."""

    path: str
    own: tuple[str, ...]
    third_party: tuple[str, ...] = ()


TEST_LIBRARIES = ("gtest/", "gmock/", "benchmark/", "fmt/")
# The allocator's core: no torch, so that sanitizers can test it.
ALLOCATOR = tuple(f"plugin/{name}.h" for name in ("planned_allocator", "arena", "upstream", "counters", "step_record", "step_scope"))
# The first room whose path begins a file's name holds the file.
ROOMS = (
    Room("solver/", own=("solver/",), third_party=("fmt/", "nlohmann/", "CLI/", "zlib.h")),
    Room("profiler/", own=("profiler/",), third_party=("fmt/", "sqlite3.h", "cupti")),
    *(Room(f"plugin/{name}.", own=ALLOCATOR)
      for name in ("upstream", "counters", "step_record", "arena", "arenas", "step_scope", "planned_allocator", "quarantine", "sessions",
                   "step_allocation")),
    Room("plugin/", own=("plugin/", "profiler/", "solver/"),
         third_party=("fmt/", "nlohmann/", "torch/", "ATen/", "c10/", "cuda_runtime_api.h", "kineto/")),
    Room("tests/solver/", own=("solver/", "tests/support/"), third_party=(*TEST_LIBRARIES, "nlohmann/", "zlib.h")),
    Room("tests/fuzz/", own=("solver/", "tests/fuzz/")),
    Room("tests/profiler/", own=("profiler/", "tests/profiler/", "tests/support/"),
         third_party=(*TEST_LIBRARIES, "sqlite3.h", "cupti")),
    *(Room(f"tests/plugin/{name}", own=(*ALLOCATOR, "tests/plugin/fake_upstream.h", "tests/plugin/planned_fixture.h",
                                        "tests/support/"), third_party=TEST_LIBRARIES)
      for name in ("arena_test", "fake_upstream", "planned_", "sessions_test", "slot_reuse_test", "step_scope_test", "steps_test",
                   "stream")),
)
# Python that runs where torch is not installed: nowhere in these files and folders...
TORCH_FREE = ("scripts/stowage/cli.py", "scripts/stowage/commands/", "scripts/stowage/explaining/",
              "scripts/stowage/exporting/", "scripts/stowage/page/", "scripts/stowage/snapshots/", "scripts/stowage/store.py",
              "scripts/stowage/text.py")
# ... and, as the others import it, not while this one is imported.
TORCH_FREE_AT_IMPORT = ("scripts/stowage/__init__.py",)

SKIPPED_FOLDERS = {".git", ".venv", "build", "out", "dist", "__pycache__", ".pytest_cache"}
NEEDS_LICENCE_LINE = {".h", ".cpp", ".cu", ".py", ".sql", ".cmake"}
LICENCE_LINE = "SPDX-License-Identifier: Apache-2.0"

INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<quote>[<"])(?P<name>[^>"]+)[>"]')
# A standard header is lower case and has no folder and no suffix, such as <string_view>.
STANDARD_HEADER = re.compile(r"[a-z0-9_]+")
# What only the C library, the compiler's runtime and the operating system have; any room may talk to those.
SYSTEM_HEADER = re.compile(r"(sys/\w+|unistd|fcntl|dlfcn|pthread|stdlib|stdio|cxxabi)\.h")
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:work|home|root|Users)/[\w-]+")
OUTSIDE_PATH = re.compile(r"\.\./shared\b")
REGISTRY = re.compile(r"\b(?:pypi|pythonhosted|download\.pytorch|registry\.npmjs|deb\.debian)\.(?:org|net)\b")


def project_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the name, relative to the root, and the content of every text file."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(name.parts) or not path.is_file():
            continue
        try:
            yield name.as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text


def check_includes(name: str, text: str) -> Iterator[str]:
    room = next((room for room in ROOMS if name.startswith(room.path)), None)
    if room is None:
        return
    for line, content in enumerate(text.splitlines(), start=1):
        include = INCLUDE.match(content)
        if not include:
            continue
        header = include["name"]
        if include["quote"] == '"':
            allowed = room.own
        elif STANDARD_HEADER.fullmatch(header) or SYSTEM_HEADER.fullmatch(header):
            continue
        else:
            allowed = room.third_party
        if not header.startswith(allowed):
            may = ", ".join((*room.own, *room.third_party))
            yield (f"{name}:{line}: cannot include '{header}': {room.path} may use only the standard library and "
                   f"{may}; move the code to a room that may")


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return [node.module]
    return []


def nodes_run_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node but those inside functions and `if TYPE_CHECKING:`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        pending.extend(ast.iter_child_nodes(node))


def check_imports(name: str, text: str) -> Iterator[str]:
    if name.startswith(TORCH_FREE) and name.endswith(".py"):
        nodes = ast.walk(ast.parse(text))
        fix = "read what is needed from the store"
    elif name in TORCH_FREE_AT_IMPORT:
        nodes = nodes_run_at_import(ast.parse(text))
        fix = "import it inside the function that needs it"
    else:
        return
    for node in nodes:
        for module in imported_modules(node):
            if module.split(".")[0] in ("torch", "torchvision"):
                yield f"{name}:{node.lineno}: cannot import '{module}': the command line runs without torch; {fix}"


def check_text(name: str, text: str) -> Iterator[str]:
    for line, content in enumerate(text.splitlines(), start=1):
        for pattern, cause, fix in (
            (MACHINE_PATH, "it is a path on one machine", "make it relative to the project"),
            (OUTSIDE_PATH, "it is outside the project", "copy what is needed into the project, with its licence"),
            (REGISTRY, "it is one registry's host", "leave the choice of registry to the user's settings"),
        ):
            found = pattern.search(content)
            if found:
                yield f"{name}:{line}: cannot mention '{found[0]}': {cause}; {fix}"


def check_licence_line(name: str, text: str) -> Iterator[str]:
    path = Path(name)
    if path.suffix not in NEEDS_LICENCE_LINE and path.name != "CMakeLists.txt" and not text.startswith("#!"):
        return
    if not any(LICENCE_LINE in content for content in text.splitlines()[:2]):
        yield f"{name}:1: cannot tell the licence: no SPDX line; begin the file with a comment '{LICENCE_LINE}'"


def check_rooms(root: Path) -> list[str]:
    return [breach for name, text in project_files(root)
            for check in (check_includes, check_imports, check_text, check_licence_line)
            for breach in check(name, text)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    breaches = check_rooms(root)
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
