# SPDX-License-Identifier: Apache-2.0
"""What keeps a planned peak from being lower: the facts that prove its bound, and what ties ops to their order.
Needs no torch."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from stowage.problem import to_problem
from stowage.solving import ask
from stowage.store import Row, Store

RANDOM, EFFECT, BARRIER = "random", "effect", "barrier"
#: For each search; a small step needs a few milliseconds.
DEADLINE_MS = 2_000


@dataclass(frozen=True)
class Proof:
    """What must live while one op runs, in every order."""

    bound_bytes: int
    throughout_bytes: int  # inputs and constants
    op: int  # -1: what lives throughout is the bound
    op_name: str
    tensors: list[Row]  # that live besides, largest first: which op makes each before, and which uses it after


@dataclass(frozen=True)
class Limit:
    """Ops that keep their order for a reason that data does not show, and what that costs."""

    reason: str  # several joined by " and "
    ops: int  # that wait for another, or are waited for
    kinds: list[str]  # of ops, most frequent first
    bound_bytes: int  # no order needs less without it either
    least_bytes: int | None  # of the best order found without it; None if none was looked for: the bound is the peak
    costs_bytes: int  # that the best order would need less


class Bounds:
    """Asks the solver about a run of a graph."""

    def __init__(self, store: Store, run: Row) -> None:
        self.problem = to_problem(store, run)
        rows = store.query("SELECT op, after_op, reason FROM dependencies WHERE run_id = ?", run["run_id"])
        self._reasons = defaultdict(set)
        for row in rows:
            self._reasons[row["op"], row["after_op"]].add(row["reason"])

    def prove(self, classes: dict[int, str]) -> Proof:
        found = ask("bound", self.problem, [])
        tensors = [{**tensor, "class": classes[tensor["tensor"]]} for tensor in found["tensors"]]
        return Proof(found["bound_bytes"], found["persistent_bytes"], found["op"], found["op_name"], tensors)

    def least_peak(self) -> int:
        """Of the best order that a short search finds."""
        return _search(self.problem)["found"]["peak_bytes"]

    def limits(self, peak_bytes: int) -> list[Limit]:
        """One for each reason that there is; `peak_bytes` is that of the best order known with all of them."""
        present = [reason for reason in (RANDOM, EFFECT, BARRIER) if any(reason in each for each in self._reasons.values())]
        found = [self._limit((reason,), peak_bytes) for reason in present]
        if len(present) > 1 and all(limit.costs_bytes == 0 for limit in found):
            found.append(self._limit(present, peak_bytes))
        return found

    def _limit(self, reasons: Iterable[str], peak_bytes: int) -> Limit:
        dropped = set(reasons)
        tied = {pair for pair, each in self._reasons.items() if each & dropped}
        free = {pair for pair in tied if self._reasons[pair] <= dropped}
        ops = [{**op, "after": [earlier for earlier in op["after"] if (op["id"], earlier) not in free]}
               for op in self.problem["ops"]]
        without = {**self.problem, "ops": ops}
        tied_ops = {op for pair in tied for op in pair}
        kinds = Counter(op["kind"] for op in self.problem["ops"] if op["id"] in tied_ops)
        bound_bytes, least_bytes = ask("bound", without, [])["bound_bytes"], None
        if bound_bytes < peak_bytes:
            least_bytes = min(peak_bytes, _search(without)["found"]["peak_bytes"])
        costs_bytes = 0 if least_bytes is None else peak_bytes - least_bytes
        return Limit(" and ".join(reasons), len(tied_ops), [kind for kind, _ in kinds.most_common()],
                     min(bound_bytes, peak_bytes), least_bytes, costs_bytes)


def _search(problem: Row) -> Row:
    return ask("bound", problem, ["--search", "--deadline-ms", str(DEADLINE_MS)])
