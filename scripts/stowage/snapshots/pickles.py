# SPDX-License-Identifier: Apache-2.0
"""Reads pickles of plain data without running code from them."""

import gc
import io
import mmap
import os
import pickle
import pickletools
import resource
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NoReturn

#: Opcodes that name, make or change objects of classes, or ask the program for some.
_OBJECTS = frozenset(("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "EXT2",
                      "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"))
#: The most memory that reading may take: so many times the file's size (torch's snapshots take 2 to 10), and a start.
_MOST_TIMES, _START_BYTES = 64, 256 << 20
_PLAIN = "a snapshot of torch holds numbers, text, lists and dictionaries only; do not trust this file"


class SnapshotError(Exception):
    """A snapshot or a trace cannot be read, or has not what was asked for. One line: what, why, and how to mend it."""


class _Refused(Exception):
    """The pickle asked for what plain data does not need."""


class _PlainUnpickler(pickle.Unpickler):
    """Python's own reader, which is quick, with no way to anything but plain data: every class, function and persistent
    object goes through one of these two, and without them its other opcodes have nothing to work on."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise _Refused("a persistent object")


def load(path: str) -> Any:
    """What the pickle holds: numbers, text, bytes, lists, tuples, dictionaries and sets, of any protocol."""
    try:
        if os.path.isdir(path):
            raise SnapshotError(f"cannot read snapshot '{path}': it is a folder; name the file in it")
        if os.path.getsize(path) == 0:
            raise SnapshotError(f"cannot read snapshot '{path}': it is empty; take the snapshot again")
        with (open(path, "rb") as file, without_collector(), bounded_memory(path),
              redirect_stderr(io.StringIO())):  # Python writes there of a bytearray that is cut short
            return _PlainUnpickler(file, errors="replace").load()
    except OSError as error:
        raise SnapshotError(f"cannot read snapshot '{path}': {error.strerror}; check the path") from error
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(f"cannot read snapshot '{path}': {_why(path, error)}") from error


def _why(path: str, error: Exception) -> str:
    """What is wrong with a pickle whose reading ended in `error`."""
    end = os.path.getsize(path)
    cut_short = f"it is cut short: it ends at byte {end}, before the pickle does; copy it again or take the snapshot again"
    if isinstance(error, EOFError) or (isinstance(error, pickle.UnpicklingError) and
                                       any(word in str(error) for word in ("truncated", "exhausted"))):
        return cut_short
    position = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            for opcode, _, at in pickletools.genops(data):
                position = at
                if opcode.name in _OBJECTS:
                    wanted = error if isinstance(error, _Refused) else "an object"
                    return f"opcode {opcode.name} at byte {position} asks for {wanted}, which could run code; {_PLAIN}"
        except ValueError as fault:
            if "unknown" in str(fault):
                return (f"it is no pickle, or a damaged one: byte {data.tell() - 1} is no opcode; choose a file of "
                        "torch.cuda.memory._dump_snapshot")
            return f"it is cut short or damaged after byte {position}; copy it again or take the snapshot again"
    if isinstance(error, MemoryError):
        return _too_much(end)
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"it is damaged: {text}; copy it again or take the snapshot again"


@contextmanager
def without_collector() -> Iterator[None]:
    """Plain data of a file has few cycles, and looking for them takes longer than reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _too_much(size_bytes: int) -> str:
    return f"it asks for more memory than a snapshot of {size_bytes} B can need; do not trust this file"


@contextmanager
def bounded_memory(path: str) -> Iterator[None]:
    """Lets the process take no more memory than the file explains: a few bytes of a pickle can ask for many GiB."""
    size_bytes = os.path.getsize(path) if os.path.isfile(path) else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = [soft, hard, used_bytes + _START_BYTES + _MOST_TIMES * size_bytes]
    resource.setrlimit(resource.RLIMIT_AS, (min(limit for limit in limits if limit != resource.RLIM_INFINITY), hard))
    try:
        yield
    except MemoryError as error:
        raise SnapshotError(f"cannot read snapshot '{path}': {_too_much(size_bytes)}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
