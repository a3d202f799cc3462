# SPDX-License-Identifier: Apache-2.0
"""Ranks that train together share their plans: rank 0 makes them, the others find them in the process group's store."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch.distributed

#: Steps that a rank goes on unplanned while rank 0 has not published a plan; after them it makes its own.
PATIENCE = 3

_current: PlanSharing | None = None
_group: Any = None


class PlanSharing:
    """Ends the steps of one rank and has their phases planned.

    Rank 0 plans a phase as soon as it may and publishes the plan. The others look for it at the end of each step, never
    wait for it, and plan by themselves where it does not come or cannot be used. Once the store has failed, each rank
    plans by itself. Thread safe.

    `ops` are those of the plugin: `end_step(complete)` returns the digest of the phase if it is to be planned or '',
    `plan_step(digest)` plans it, `step_plan(digest)` is its plan as text or '', `adopt_step_plan(text)` returns '' or
    why the plan cannot be used. `store` is a `torch.distributed.Store` that no other thread uses.
    """

    def __init__(self, ops: Any, store: Any, rank: int) -> None:
        self.published = 0  #: plans that this rank made and published
        self.adopted = 0  #: plans of rank 0 that this rank follows
        self.alone = 0  #: plans that this rank asked for without publishing them
        self._ops = ops
        self._store = store
        self._rank = rank
        self._lock = threading.RLock()  # guards what follows, the store too
        self._steps_left: dict[str, int] = {}  # by the digests of plans that are waited for

    def end_step(self, complete: bool) -> None:
        """Ends the step; raises nothing that the store does."""
        digest = self._ops.end_step(complete)
        with self._lock:
            if self._rank == 0 or self._store is None:
                if digest:
                    self._plan(digest)
                return
            if digest:
                self._steps_left.setdefault(digest, PATIENCE + 1)
            for waiting in list(self._steps_left):
                if self._store is not None:  # once closed, all that was waited for is planned
                    self._look_for(waiting)

    def close(self) -> None:
        """Plans what is still waited for. Steps may end here afterwards too: nothing is shared any more."""
        with self._lock:
            self._store = None
            for digest in self._steps_left:
                self._plan(digest)
            self._steps_left.clear()

    def _look_for(self, digest: str) -> None:
        text = self._fetch(digest)
        if self._store is None:
            return
        self._steps_left[digest] -= 1
        if text is None and self._steps_left[digest] > 0:
            return
        del self._steps_left[digest]
        if text and self._ops.adopt_step_plan(text) == "":
            self.adopted += 1
        else:
            self._plan(digest)

    def _plan(self, digest: str) -> None:
        self._ops.plan_step(digest)
        # Without a plan an empty text is published, so that the others do not wait for one.
        if self._rank == 0 and self._publish(digest, self._ops.step_plan(digest)):
            self.published += 1
        else:
            self.alone += 1

    def _publish(self, digest: str, text: str) -> bool:
        if self._store is None:
            return False
        try:
            self._store.set(_key(digest), text)
        except Exception as error:
            self._give_up(error)
            return False
        return True

    def _fetch(self, digest: str) -> str | None:
        """The text that rank 0 published, None if it has not yet."""
        try:
            if not self._store.check([_key(digest)]):
                return None
            return self._store.get(_key(digest)).decode()
        except Exception as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        _tell(error)
        self.close()


def plan_sharing(ops: Any) -> PlanSharing | None:
    """That of the default process group; None where there is no other rank, or no store to share through."""
    global _current, _group
    group = torch.distributed.group.WORLD if torch.distributed.is_available() else None
    if group is _group:
        return _current
    if _current is not None:
        _current.close()
    _current, _group = None, group
    if group is not None and group.size() > 1:
        try:
            # A client of its own: a thread that waits in the group's would keep us waiting too.
            store = torch.distributed.distributed_c10d._get_default_store().clone()
            _current = PlanSharing(ops, store, group.rank())
        except Exception as error:
            _tell(error)
    ops.set_option("share_plans", "0" if _current is None else "1")
    return _current


def _key(digest: str) -> str:
    return f"stowage/{digest}"


def _tell(error: Exception) -> None:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    print(f"stowage: cannot share plans through the process group's store: {line}; this rank plans by itself",
          file=sys.stderr)
