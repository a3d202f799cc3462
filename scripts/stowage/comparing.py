# SPDX-License-Identifier: Apache-2.0
"""Compares what lives at the peaks of two runs, by the call sites that made it. Needs no torch."""

import re
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import asdict, dataclass

from stowage.curve import Curve
from stowage.roles import CLASSES, classes_of
from stowage.store import Row, Store

GREW, SHRANK, APPEARED, VANISHED = "grew", "shrank", "appeared", "vanished"
#: Of what `site_changes` returns.
COLUMNS = ("change", "change_bytes", "a_bytes", "b_bytes", "a_tensors", "b_tensors", "kind", "scope", "source", "name")
# What tells apart ops of one name: "add_12", "batch_norm_3.0". Names of TorchScript may be numbers alone.
_NUMBER = re.compile(r"(^|[._])\d+(\.\d+)?$")


@dataclass(frozen=True, order=True)
class Site:
    """What makes tensors, as far as two runs can share it: ops are numbered anew in each, so that no number counts.

    `kind` is of the op, or "input" or "constant", which have a name alone.
    """

    kind: str
    scope: str
    source: str
    name: str  # without the number that tells it from its like


@dataclass(frozen=True)
class Peak:
    """A run's peak: `where` as `Curve.peak` says, and bytes and tensors there by site and by class."""

    where: Row
    by_site: dict[Site, tuple[int, int]]
    by_class: dict[str, tuple[int, int]]


def peak_of(store: Store, run: Row, planned: bool) -> Peak:
    curve = Curve(store, run, planned)
    where = curve.peak()
    ops = {op["op"]: op for op in curve.ops}
    classes = classes_of(store, run)
    by_site: dict[Site, list[int]] = defaultdict(list)
    by_class: dict[str, list[int]] = defaultdict(list)
    for tensor in where.pop("tensors"):
        by_site[_site(tensor, ops.get(curve.made_by[tensor["tensor"]]))].append(tensor["size_bytes"])
        by_class[classes[tensor["tensor"]]].append(tensor["size_bytes"])
    return Peak(where, *({key: (sum(sizes), len(sizes)) for key, sizes in found.items()} for found in (by_site, by_class)))


def _site(tensor: Row, op: Row | None) -> Site:
    if op is None:
        return Site(tensor["kind"], "", "", tensor["name"])
    return Site(op["kind"], op["scope"], op["source"], stem(op["name"]))


def stem(name: str) -> str:
    return _NUMBER.sub("", name)


def site_changes(a: Peak, b: Peak) -> list[Row]:
    """The sites that have other bytes at the peak of b than at that of a, most first; they add up to its difference."""
    rows = [{"change": change, **sizes, **asdict(site)} for site, change, sizes in _changes(a.by_site, b.by_site)
            if sizes["change_bytes"] != 0]
    return sorted(rows, key=lambda row: (-abs(row["change_bytes"]), row["kind"], row["scope"], row["source"], row["name"]))


def class_changes(a: Peak, b: Peak) -> list[Row]:
    """All classes of either peak; they add up to both peaks and to their difference."""
    rows = [{"class": name, **sizes} for name, _, sizes in _changes(a.by_class, b.by_class)]
    return sorted(rows, key=lambda row: CLASSES.index(row["class"]))


def _changes(a: dict[Hashable, tuple[int, int]], b: dict[Hashable, tuple[int, int]]) -> list[tuple[Hashable, str, Row]]:
    found = []
    for key in {**a, **b}:
        (a_bytes, a_tensors), (b_bytes, b_tensors) = a.get(key, (0, 0)), b.get(key, (0, 0))
        change = APPEARED if key not in a else VANISHED if key not in b else GREW if b_bytes > a_bytes else SHRANK
        found.append((key, change, {"change_bytes": b_bytes - a_bytes, "a_bytes": a_bytes, "b_bytes": b_bytes,
                                    "a_tensors": a_tensors, "b_tensors": b_tensors}))
    return found
