# SPDX-License-Identifier: Apache-2.0
"""A recorded run of a graph, event by event: as it ran, or as planned. Needs no torch."""

from collections import defaultdict

from stowage.store import Row, Store


class Replay:
    """The live bytes over a run, and what lives at its peak: the first moment at which most bytes are live."""

    def __init__(self, store: Store, run: Row, planned: bool) -> None:
        timeline, order = ("planned_timeline", "step, event") if planned else ("timeline", "event, change_bytes")
        step = "step" if planned else "coalesce(op, -1)"
        #: The first stands for the start of the run; its op and tensor are None.
        self.events = store.query(f"SELECT {step} AS step, op, tensor, change_bytes, live_bytes FROM {timeline} "
                                  f"WHERE run_id = ? ORDER BY {order}", run["run_id"])
        throughout = store.query("SELECT tensor, size_bytes FROM tensors WHERE run_id = ? AND kind IN ('input', 'constant')",
                                 run["run_id"])
        self.throughout = {tensor["tensor"]: tensor["size_bytes"] for tensor in throughout}
        self._at = max(range(len(self.events)), key=lambda at: self.events[at]["live_bytes"])

    @property
    def peak_bytes(self) -> int:
        return self.events[self._at]["live_bytes"]

    @property
    def peak_op(self) -> int | None:
        """None if the peak is before the first op."""
        return self.events[self._at]["op"]

    @property
    def peak_step(self) -> int:
        """The place of that op in the order; -1 before the first."""
        return self.events[self._at]["step"]

    def live_at_peak(self) -> dict[int, int]:
        """Bytes by tensor; they add up to the peak."""
        live = defaultdict(int, self.throughout)
        for event in self.events[1:self._at + 1]:
            live[event["tensor"]] += event["change_bytes"]
        return {tensor: size for tensor, size in live.items() if size > 0}

    def most_during(self, op: int, step: int) -> int:
        """The most that lives while an op runs, which has that place in the order."""
        before = [event["live_bytes"] for event in self.events if event["step"] < step]
        return max([before[-1], *(event["live_bytes"] for event in self.events if event["op"] == op)])
