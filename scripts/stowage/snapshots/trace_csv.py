# SPDX-License-Identifier: Apache-2.0
"""Reads a trace from a text file: a line for each allocation and each free, in the order in which they happened.

    alloc,NAME,BYTES[,STREAM]
    free,NAME

A name is of one live block at a time and may come again after its free. Lines that are empty or begin with # count for
nothing. Streams are numbers, 0 where none is given.
"""

from typing import NoReturn

from stowage.snapshots.pickles import SnapshotError
from stowage.snapshots.trace import Block, Trace

_LIMIT_BYTES = 1 << 62
_TAKES = "a line is alloc,NAME,BYTES[,STREAM] or free,NAME"


def read_trace(path: str) -> Trace:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return _Reader(path).read(file.read())
    except OSError as error:
        raise SnapshotError(f"cannot read trace '{path}': {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise SnapshotError(f"cannot read trace '{path}': it is not text; {_TAKES}") from error


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._row = 0
        self._live: dict[str, tuple[int, Block]] = {}  # with the row of its allocation
        self._sum_bytes = 0

    def read(self, text: str) -> Trace:
        trace = Trace(0, 0, [])
        for line in text.split("\n"):
            self._row += 1
            line = line.removesuffix("\r")
            if not line.strip() or line.startswith("#"):
                continue
            fields = [field.strip() for field in line.split(",")]
            if fields[0] == "alloc":
                trace.blocks.append(self._allocate(fields, trace.end))
            elif fields[0] == "free":
                self._free(fields, trace.end)
            else:
                self._refuse(f"'{fields[0][:40]}' is neither alloc nor free; {_TAKES}")
            trace.end += 1
        if not trace.blocks:
            raise SnapshotError(f"cannot read trace '{self._path}': it allocates nothing; {_TAKES}")
        return trace

    def _allocate(self, fields: list[str], event: int) -> Block:
        if len(fields) not in (3, 4):
            self._refuse(f"alloc has {len(fields)} fields; {_TAKES}")
        name = fields[1]
        if name in self._live:
            self._refuse(f"column 'name': '{name[:40]}' is live, allocated in row {self._live[name][0]}; free it first")
        size_bytes = self._number("bytes", fields[2])
        self._sum_bytes += size_bytes
        if self._sum_bytes >= _LIMIT_BYTES:
            self._refuse("column 'bytes': the sizes up to this row sum to 2^62 B or more")
        stream = self._number("stream", fields[3]) if len(fields) == 4 else 0
        block = Block(0, size_bytes, stream, event, None, name)
        self._live[name] = (self._row, block)
        return block

    def _free(self, fields: list[str], event: int) -> None:
        if len(fields) != 2:
            self._refuse(f"free has {len(fields)} fields; {_TAKES}")
        if fields[1] not in self._live:
            self._refuse(f"column 'name': '{fields[1][:40]}' is not live; allocate it before its free")
        self._live.pop(fields[1])[1].end = event

    def _number(self, column: str, text: str) -> int:
        # int() takes more: signs, underscores and the digits of all scripts.
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) >= _LIMIT_BYTES:
            self._refuse(f"column '{column}': '{text[:40]}' is no integer from 0 to 2^62 - 1")
        return int(text)

    def _refuse(self, cause: str) -> NoReturn:
        raise SnapshotError(f"cannot read trace '{self._path}': row {self._row}: {cause}")
