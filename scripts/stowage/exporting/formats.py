# SPDX-License-Identifier: Apache-2.0
"""The formats of export, how a file's name tells them, and how they are written. Needs no torch."""

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from stowage.exporting import memory_viz, perfetto
from stowage.exporting.lives import Lives, read_lives, round_up
from stowage.problem import to_problem
from stowage.roles import classes_of
from stowage.store import Row, Store, StoreError


class ExportError(Exception):
    """Nothing can be written as asked. One line: what, why, and how to mend it."""


class Format(str, Enum):
    PERFETTO = "perfetto"
    MEMORY_VIZ = "memory-viz"
    MINIMALLOC = "minimalloc"
    STEP = "step"
    CSV = "csv"


class Table(str, Enum):
    OPS = "ops"
    TENSORS = "tensors"


@dataclass
class Export:
    format: Format
    planned: bool = False
    table: Table = Table.OPS


#: What the names of files end in, each before what it ends in itself; a mere .json may be any.
ENDINGS = {
    ".minimalloc.csv": Format.MINIMALLOC, ".csv": Format.CSV, ".pickle": Format.MEMORY_VIZ, ".pkl": Format.MEMORY_VIZ,
    ".step.json": Format.STEP, ".trace.json": Format.PERFETTO, ".perfetto.json": Format.PERFETTO,
}


def format_of(path: str) -> Format:
    name = os.path.basename(path).lower().removesuffix(".gz")
    for ending, found in ENDINGS.items():
        if name.endswith(ending):
            return found
    formats = "|".join(each.value for each in Format)
    raise ExportError(f"cannot tell a format from the name of '{path}': add --format {formats}")


def check_destination(path: str, export: Export, force: bool) -> None:
    """Refuses, before any work, a place where the export may not be written."""
    def refuse(why: str) -> None:
        raise ExportError(f"cannot write '{path}': {why}")

    if os.path.isdir(path):
        refuse("it is a folder; name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        refuse("it is no regular file; choose another path")
    if os.path.exists(path) and not force:
        refuse("it exists; add --force to replace it")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        refuse("its folder does not exist; make it first")
    if path.lower().endswith(".gz") and export.format not in (Format.PERFETTO, Format.STEP):
        refuse(f"files of format {export.format.value} are not read from gzip; leave .gz out")


def write(path: str, content: bytes) -> int:
    """Writes the file whole or not at all, and returns its size in bytes."""
    if path.lower().endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    target = os.path.realpath(path)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, target)
    except OSError as error:
        raise ExportError(f"cannot write '{path}': {(error.strerror or str(error)).lower()}; choose another path") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return len(content)


def encode(store: Store, run: Row, export: Export) -> bytes:
    return ENCODERS[export.format](store, run, export)


def _perfetto(store: Store, run: Row, export: Export) -> bytes:
    sides = [True] if export.planned else [False, True] if run["planned_peak_bytes"] is not None else [False]
    return perfetto.encode(store, [read_lives(store, run, planned) for planned in sides])


def _memory_viz(store: Store, run: Row, export: Export) -> bytes:
    return memory_viz.encode(read_lives(store, run, export.planned), classes_of(store, run))


def _minimalloc(store: Store, run: Row, export: Export) -> bytes:
    _refuse_partial(store, run, export)
    rows = buffers(read_lives(store, run, export.planned))
    if not rows:
        raise StoreError(f"cannot export run {run['run_id']} of store '{store.path}' as {export.format.value}: it allocates "
                         "nothing that an arena would hold; choose another from 'stowage info'")
    return _to_csv(rows)


def buffers(lives: Lives) -> list[Row]:
    """What an arena holds, in the format of minimalloc: `upper` is exclusive; with its offset if that is planned."""
    alignment_bytes = lives.run["alignment_bytes"]
    # The step before a step of a loop leaves tensors with the ids of this one's.
    return [{"id": f"{block.tensor}-before" if block.op is None else str(block.tensor), "lower": block.begin,
             "upper": len(lives.changes) + 1 if block.end is None else block.end,
             "size": round_up(block.size_bytes, alignment_bytes),
             **({"offset": block.offset_bytes} if lives.planned else {}), "alignment": alignment_bytes}
            for block in lives.layout]


def _step(store: Store, run: Row, export: Export) -> bytes:
    if run["kind"] == "step":
        raise StoreError(f"cannot export run {run['run_id']} of store '{store.path}' as step: it is a step of a loop, of "
                         "which nobody knows which op uses what; its layout goes to --format minimalloc")
    _refuse_partial(store, run, export)
    return json.dumps(to_problem(store, run), separators=(",", ":")).encode()


def _refuse_partial(store: Store, run: Row, export: Export) -> None:
    why = "it ended early" if not run["complete"] else f"{run['dropped_records']} records dropped"
    if not run["complete"] or run["dropped_records"] > 0:
        raise StoreError(f"cannot export run {run['run_id']} of store '{store.path}' as {export.format.value}: {why}, so "
                         "that nothing can be planned from it; profile again")


def _csv(store: Store, run: Row, export: Export) -> bytes:
    if export.table is Table.OPS:
        phases = perfetto.phase_names(store, run)
        return _to_csv([{**op, "phase": phases.get(op["op"], "")} for op in store.ops(run, export.planned)])
    classes, rows = classes_of(store, run), store.tensors(run)
    offsets = {slot["tensor"]: slot["offset_bytes"] for slot in store.plan(run)["slots"]} if export.planned else {}
    for row in rows:
        row["class"] = classes[row["tensor"]]
        if export.planned:
            row["offset_bytes"] = offsets.get(row["tensor"])
    return _to_csv(rows)


def _to_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


ENCODERS: dict[Format, Callable[[Store, Row, Export], bytes]] = {
    Format.PERFETTO: _perfetto, Format.MEMORY_VIZ: _memory_viz, Format.MINIMALLOC: _minimalloc, Format.STEP: _step,
    Format.CSV: _csv,
}
