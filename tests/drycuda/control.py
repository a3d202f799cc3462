# SPDX-License-Identifier: Apache-2.0
"""What Python tests ask of dry CUDA, and tell it; control.h documents each call. For a process under scripts/drycuda."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ARGUMENTS = {
    "drycuda_count": (ctypes.c_uint64, [ctypes.c_char_p]),
    "drycuda_counter_names": (ctypes.c_char_p, []),
    "drycuda_reset_counts": (None, []),
    "drycuda_used_bytes": (ctypes.c_uint64, [ctypes.c_int]),
    "drycuda_peak_bytes": (ctypes.c_uint64, [ctypes.c_int]),
    "drycuda_reset_peak": (None, [ctypes.c_int]),
    "drycuda_set_total_bytes": (None, [ctypes.c_int, ctypes.c_uint64]),
    "drycuda_hold_events": (None, [ctypes.c_int]),
    "drycuda_hold_stream": (None, [ctypes.c_void_p]),
    "drycuda_release_events": (None, []),
    "drycuda_stream_position": (ctypes.c_uint64, [ctypes.c_void_p]),
    "drycuda_stream_finished": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "drycuda_range_begin": (None, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "drycuda_range_use": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "drycuda_range_end": (None, [ctypes.c_void_p]),
    "drycuda_live_ranges": (ctypes.c_uint64, []),
    "drycuda_violations": (ctypes.c_uint64, []),
    "drycuda_violation_text": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]),
    "drycuda_now_ns": (ctypes.c_uint64, []),
}


def is_present() -> bool:
    """Whether this process runs on dry CUDA."""
    return hasattr(ctypes.CDLL(None), "drycuda_count")


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "drycuda_count"):
        raise RuntimeError("cannot control dry CUDA: it is not in this process; start it as `scripts/drycuda CMD`")
    for name, (result, arguments) in _ARGUMENTS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def counts() -> dict[str, int]:
    library = _library()
    return {name.decode(): library.drycuda_count(name) for name in library.drycuda_counter_names().split()}


def reset_counts() -> None:
    """Also forgets the violations."""
    _library().drycuda_reset_counts()


def used_bytes(device: int = 0) -> int:
    return _library().drycuda_used_bytes(device)


def peak_bytes(device: int = 0) -> int:
    return _library().drycuda_peak_bytes(device)


def reset_peak(device: int = 0) -> None:
    _library().drycuda_reset_peak(device)


def set_total_bytes(total_bytes: int, device: int = 0) -> None:
    _library().drycuda_set_total_bytes(device, total_bytes)


@contextmanager
def held_events(stream: int | None = None) -> Iterator[None]:
    """What is submitted inside stays unfinished until it is waited for: on all streams, or on the one whose
    `cuda_stream` is given."""
    library = _library()
    if stream is None:
        library.drycuda_hold_events(1)
    else:
        library.drycuda_hold_stream(stream)
    try:
        yield
    finally:
        library.drycuda_release_events()


def stream_position(stream: int) -> int:
    return _library().drycuda_stream_position(stream)


def stream_finished(stream: int, position: int) -> bool:
    return bool(_library().drycuda_stream_finished(stream, position))


def live_ranges() -> int:
    return _library().drycuda_live_ranges()


def violations() -> list[str]:
    """The first hundred."""
    library = _library()
    text = ctypes.create_string_buffer(library.drycuda_violation_text(None, 0))
    library.drycuda_violation_text(text, len(text))
    return text.value.decode().splitlines()


def now_ns() -> int:
    return _library().drycuda_now_ns()


@contextmanager
def witness() -> Iterator[None]:
    """Inside, dry CUDA is told each range of memory that torch's allocator gives out, and checks them."""
    folder = os.environ.get("DRYCUDA_DIR")
    if not folder:
        raise RuntimeError("cannot install the witness: DRYCUDA_DIR is not set; start as `scripts/drycuda CMD`")
    library = ctypes.CDLL(str(Path(folder) / "libwitness.so"))
    library.witness_install()
    try:
        yield
    finally:
        library.witness_remove()
