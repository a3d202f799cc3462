# SPDX-License-Identifier: Apache-2.0
"""How the peak of a captured step grows with the batch, reckoned from one run. Needs no torch."""

import json
from dataclasses import dataclass

from stowage import roles
from stowage.curve import Curve
from stowage.store import Row, Store

_MOST_BATCH = 1 << 20
_MAY_SCALE = (roles.BATCH, roles.SAVED, roles.TEMPORARIES, roles.WORKSPACE)


@dataclass(frozen=True)
class Batch:
    """What of a step's tensors is as large as the batch; the rest is as large as the weights."""

    size: int  # the first dimension of the first input
    scaled: frozenset[int]  # tensors


@dataclass(frozen=True)
class AtBatch:
    batch: int
    before_bytes: int
    after_bytes: int | None  # of the planned order of now; None if there is none
    scaled_bytes: int  # what of the peak before planning grows with the batch


@dataclass(frozen=True)
class Binding:
    """What of the peak before planning grows with the batch, and what is there at any."""

    batch: int
    scaled_bytes: int
    fixed_bytes: int
    turn_batch: int | None  # the least batch at which half of the peak or more grows with it; None if there is none
    sizes: list[AtBatch]  # from half of the batch to four times as much

    @property
    def is_weights_bound(self) -> bool:
        return self.scaled_bytes < self.fixed_bytes


def bind(batch: Batch, before: Curve, after: Curve | None) -> Binding:
    """`after`: as planned."""
    written, planned = Scaling(before, batch), Scaling(after, batch) if after else None
    sizes = [AtBatch(size, written.peak_bytes(size), planned.peak_bytes(size) if planned else None,
                     written.scaled_bytes(size)) for size in (batch.size // 2, *(batch.size * times for times in (1, 2, 4)))
             if size > 0]
    scaled = written.scaled_bytes(batch.size)
    return Binding(batch.size, scaled, written.peak_bytes(batch.size) - scaled, written.turn(), sizes)


def find_batch(store: Store, run: Row, classes: dict[int, str], phases: roles.Phases) -> Batch | None:
    """None if the record does not say how large the batch was.

    What the forward and the backward make grows with it, but for what has the shape of a parameter or, in no dimension,
    a multiple of the batch. Of workspaces only the size is recorded: those as large as a parameter do not grow.
    """
    tensors = store.query("SELECT tensor, name, shape, size_bytes FROM tensors WHERE run_id = ? ORDER BY tensor",
                          run["run_id"])
    shapes = {tensor["tensor"]: _dimensions(tensor["shape"]) for tensor in tensors}
    first = next((shapes[tensor["tensor"]] for tensor in tensors if tensor["name"] == "input_0"), None)
    if not first or first[0] < 1:
        return None
    batch = first[0]
    sizes = {tensor["tensor"]: tensor["size_bytes"] for tensor in tensors}
    params = [tensor for tensor, name in classes.items() if name == roles.PARAMETERS]
    of_weights, as_weights = {tuple(shapes[tensor] or ()) for tensor in params}, {sizes[tensor] for tensor in params}
    made_by = {row["tensor"]: row["op"] for row in
               store.query("SELECT tensor, op FROM allocations WHERE run_id = ?", run["run_id"])}

    def scales(tensor: int) -> bool:
        if classes[tensor] not in _MAY_SCALE or made_by.get(tensor) in phases.updates:
            return False
        shape = shapes[tensor]
        if shape is None:
            return sizes[tensor] not in as_weights
        return tuple(shape) not in of_weights and any(size > 0 and size % batch == 0 for size in shape)

    return Batch(batch, frozenset(tensor for tensor in classes if scales(tensor)))


def _dimensions(shape: str) -> list[int] | None:
    """None where it is not recorded."""
    try:
        found = json.loads(shape)
    except ValueError:
        return None
    is_shape = isinstance(found, list) and all(isinstance(size, int) for size in found)
    return found if is_shape else None


class Scaling:
    """The peak of one order at any batch size: at each moment some bytes stay and some grow with the batch."""

    def __init__(self, curve: Curve, batch: Batch) -> None:
        self._batch = batch.size
        scaled = sum(size for tensor, size in curve.start.items() if tensor in batch.scaled)
        fixed = sum(curve.start.values()) - scaled
        moments = {(scaled, fixed)}
        for event in curve.events[1:]:
            if event["tensor"] in batch.scaled:
                scaled += event["change_bytes"]
            else:
                fixed += event["change_bytes"]
            moments.add((scaled, fixed))
        self._moments: list[tuple[int, int]] = []  # those that are the peak at some batch size
        for scaled, fixed in sorted(moments, reverse=True):
            if not self._moments or fixed > self._moments[-1][1]:
                self._moments.append((scaled, fixed))

    def peak_bytes(self, batch: int) -> int:
        return sum(self._peak(batch))

    def scaled_bytes(self, batch: int) -> int:
        """What of the peak grows with the batch."""
        return self._peak(batch)[0]

    def turn(self) -> int | None:
        """The least batch at which half of the peak or more grows with it; None if there is none."""
        if self._is_weights_bound(_MOST_BATCH):
            return None
        low, high = 0, _MOST_BATCH
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_weights_bound(middle) else (low, middle)
        return high

    def _is_weights_bound(self, batch: int) -> bool:
        scaled, fixed = self._peak(batch)
        return scaled < fixed

    def _peak(self, batch: int) -> tuple[int, int]:
        at_batch = ((scaled * batch // self._batch, fixed) for scaled, fixed in self._moments)
        return max(at_batch, key=lambda moment: (sum(moment), moment))
