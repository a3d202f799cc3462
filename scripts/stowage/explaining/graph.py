# SPDX-License-Identifier: Apache-2.0
"""Where the peak of a run of a graph is, before and after planning, why, and what would lower it. Needs no torch."""

from collections import defaultdict
from dataclasses import dataclass

from stowage import roles
from stowage.curve import Curve
from stowage.explaining.limits import DEADLINE_MS, Bounds, Limit, Proof
from stowage.explaining.places import Modules, shorten
from stowage.explaining.scaling import Binding, bind, find_batch
from stowage.problem import choose_run
from stowage.roles import CLASSES, GRADIENTS
from stowage.solving import SolverError, plan_budgets
from stowage.store import DAMAGED, Row, Store, StoreError, moved_ops

START, FORWARD, END_OF_FORWARD, BACKWARD, UPDATE, GRAPH = (
    "before the first op", "forward", "end of the forward", "backward", "update", "graph")
#: What a training may take longer, for less memory.
SLOWDOWN = 1.05


@dataclass(frozen=True)
class Share:
    name: str
    tensors: int
    size_bytes: int


@dataclass(frozen=True)
class Side:
    """The run in one order: as written, or as planned."""

    peak_bytes: int
    op: Row | None  # None: the peak is before the first op
    step: int  # the place of the op in the order
    place: str
    place_number: int  # it is the place's n-th op in this order, from 1
    place_ops: int  # of how many
    classes: list[Share]  # of what lives at the peak, to which they add up, as the modules do
    modules: list[Share]
    gradients_kept: int  # that outlive the backward
    forward_end_op: Row | None
    forward_end_bytes: int | None  # the most that lives while that op runs


@dataclass(frozen=True)
class Changes:
    """What the plan changed."""

    ops: int
    moved_ops: int
    gradients: int
    reused_tensors: int  # that lie where a dying input lay
    reused_bytes: int


@dataclass(frozen=True)
class Help:
    """Something that may lower the peak, and the peak then; None if it would not help."""

    name: str
    peak_bytes: int | None
    how: str
    time_ratio: float | None = None


@dataclass(frozen=True)
class GraphExplanation:
    repeats: int  # ops that run again, in a graph that a budget has made
    before: Side
    after: Side | None
    modules_are_recorded: bool
    changes: Changes | None
    proof: Proof | None
    unproven: str  # why there is no proof
    limits: list[Limit]
    binding: Binding | None
    helps: list[Help]


def explain_graph(store: Store, run: Row) -> GraphExplanation:
    """Explains a run of a graph, with the help of the solver where that is there."""
    explainer = _Explainer(store, run)
    why_not = None
    if not run["complete"]:
        why_not = "it ended early; profile again"
    elif not explainer.ops:
        why_not = "it has no ops; choose another from 'stowage info'"
    elif explainer.after is not None and {op["op"] for op in explainer.after.ops} != explainer.ops.keys():
        why_not = f"its plan has not each op once; {DAMAGED}"
    if why_not is not None:
        raise StoreError(f"cannot explain run {run['run_id']} of store '{store.path}': {why_not}")
    return explainer.explain()


class _Explainer:
    def __init__(self, store: Store, run: Row) -> None:
        self.store, self.run = store, run
        self.phases = roles.phases_of(store, run)
        self.classes = roles.classes_of(store, run)
        self.modules = Modules(store, run, self.phases)
        self.ops = {op["op"]: op for op in store.query(
            "SELECT op, name, kind, scope, source FROM ops WHERE run_id = ? ORDER BY op", run["run_id"])}
        self.before = Curve(store, run, planned=False)
        self.after = Curve(store, run, planned=True) if run["planned_peak_bytes"] is not None else None

        live = [row["tensor"] for curve in (self.before, self.after) if curve for row in curve.peak()["tensors"]]
        self.modules_shown = shorten(self.modules.of_tensor.get(tensor, "") for tensor in live)

    def explain(self) -> GraphExplanation:
        before = self._side(self.before)
        after = self._side(self.after) if self.after else None
        binding, bounds, proof, unproven, limits = self._binding(), None, None, "", []
        least = (after or before).peak_bytes
        try:
            bounds = Bounds(self.store, self.run)
            proof = bounds.prove(self.classes)
            if after is None:
                least = min(least, bounds.least_peak())
            limits = bounds.limits(least)
        except SolverError as error:
            bounds, unproven = None, str(error)
        changes = self._changes(self.after) if self.after else None
        return GraphExplanation(self._repeats(), before, after, self.modules.are_recorded, changes, proof, unproven, limits,
                                binding, self._helps(bounds, binding, least))

    def _binding(self) -> Binding | None:
        batch = find_batch(self.store, self.run, self.classes, self.phases) if self.phases else None
        return bind(batch, self.before, self.after) if batch else None

    def _side(self, curve: Curve) -> Side:
        peak = curve.peak()
        live = {row["tensor"]: row["size_bytes"] for row in peak["tensors"]}
        sizes = defaultdict(list)
        for tensor, size in live.items():
            sizes[self.classes[tensor]].append(size)
        op = peak["op"]
        place = self._place(op)
        same = [each["op"] for each in curve.ops if self._place(each["op"]) == place]
        end = self.phases.forward_end_op if self.phases else None
        return Side(
            peak["live_bytes"], self.ops[op] if op is not None else None, peak["step"] if op is not None else -1, place,
            same.index(op) + 1 if op is not None else 0, len(same),
            [Share(name, len(sizes[name]), sum(sizes[name])) for name in CLASSES if sizes[name]],
            self._by_module(live),
            self._gradients_kept(curve),
            self.ops[end] if end is not None else None,
            curve.at(end)["live_bytes"] if end is not None else None)

    def _by_module(self, live: dict[int, int]) -> list[Share]:
        """Largest first."""
        sizes = defaultdict(list)
        for tensor, size in live.items():
            sizes[self.modules_shown[self.modules.of_tensor.get(tensor, "")]].append(size)
        found = [Share(name, len(members), sum(members)) for name, members in sizes.items()]
        return sorted(found, key=lambda share: (-share.size_bytes, share.name))

    def _place(self, op: int | None) -> str:
        if op is None:
            return START
        if self.phases is None:
            return GRAPH
        if op in self.phases.updates:
            return UPDATE
        end = self.phases.forward_end_op
        return BACKWARD if op > end else END_OF_FORWARD if op == end else FORWARD

    def _gradients_kept(self, curve: Curve) -> int:
        """How many gradients live when the last op of the backward has run."""
        if self.phases is None:
            return 0
        last = max((step for step, op in enumerate(curve.ops) if self._place(op["op"]) == BACKWARD), default=-1)
        ends = {event["tensor"]: event["step"] for event in curve.events if event["change_bytes"] < 0}
        return sum(name == GRADIENTS and ends.get(tensor, last + 1) > last for tensor, name in self.classes.items())

    def _repeats(self) -> int:
        return self.store.query("SELECT count(program_op) - count(DISTINCT program_op) AS repeats FROM ops WHERE run_id = ?",
                                self.run["run_id"])[0]["repeats"]

    def _changes(self, after: Curve) -> Changes:
        reused = self.store.query("SELECT count(*) AS tensors, coalesce(sum(t.size_bytes), 0) AS size_bytes "
                                  "FROM points AS p JOIN tensors AS t ON t.run_id = p.run_id AND t.tensor = p.tensor "
                                  "WHERE p.run_id = ? AND p.kind = 'reuse'", self.run["run_id"])[0]
        gradients = sum(name == GRADIENTS for name in self.classes.values())
        order = [op["op"] for op in after.ops]
        return Changes(len(order), len(moved_ops(order)), gradients, reused["tensors"], reused["size_bytes"])

    def _helps(self, bounds: Bounds | None, binding: Binding | None, peak_bytes: int) -> list[Help]:
        """What would lower the peak, which is `peak_bytes` in the best order known."""
        found = []
        if bounds is not None and self.after is None:
            helps = peak_bytes < self.before.peak()["live_bytes"]
            found.append(Help("let stowage plan the order", peak_bytes if helps else None,
                              "train on: it plans a step that it has seen twice"))
        kept = sum(size for tensor, size in self.before.start.items() if self.classes[tensor] == GRADIENTS)
        if kept:
            found.append(Help("keep no gradients", peak_bytes - kept, "let p.grad be None before a step, as "
                              "optimizer.zero_grad() does"))
        if bounds is not None:
            found += self._again(bounds, peak_bytes)
        half = next((each for each in binding.sizes if each.batch < binding.batch), None) if binding else None
        if half:
            at_half = half.before_bytes if half.after_bytes is None else half.after_bytes
            found.append(Help(f"halve the batch, to {half.batch}", at_half if at_half < peak_bytes else None,
                              "predicted for the order of now"))
        return found

    def _again(self, bounds: Bounds, peak_bytes: int) -> list[Help]:
        """Empty if that cannot be planned from the run."""
        try:
            choose_run(self.store, self.run["run_id"])
            found = plan_budgets(bounds.problem, ["--slowdown", str(SLOWDOWN), "--deadline-ms", str(DEADLINE_MS)])
        except (StoreError, SolverError):
            return []
        row = found["rows"][0]
        helps = row["peak_bytes"] < peak_bytes and row["repeats"] > 0
        unit, unit_bytes = ("MiB", 1 << 20) if row["peak_bytes"] >= 1 << 26 else ("KiB", 1 << 10)
        budget = f"{-(-row['peak_bytes'] // unit_bytes)}{unit}"
        return [Help(f"run ops again instead of keeping what they made, in up to {SLOWDOWN} times the time",
                     row["peak_bytes"] if helps else None, f'stowage.enable(budget="{budget}")', row["time_ratio"])]
