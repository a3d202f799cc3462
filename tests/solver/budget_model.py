# SPDX-License-Identifier: Apache-2.0
"""What it means to run ops of a small step again, told a second time: the least time below a peak as an integer
program, solved by HiGHS, and whether there is any schedule, by trying every state. It shares no code with the solver.

A value is a tensor as it is between two writes. An op takes and makes values; what it overwrites is gone.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import highspy

from solver.step_model import StepModel

Value = tuple[int, int]  # tensor, and how many writers since its allocation have run
State = tuple[frozenset[int], frozenset[Value]]


@dataclass(frozen=True)
class Reused:
    value: Value
    saved_bytes: int


class BudgetModel:
    """A step whose ids are indices. Views are left out: they take neither time nor room."""

    def __init__(self, step: dict) -> None:
        self.step = StepModel(step)
        entries, model = step["ops"], self.step
        views = {view for entry in entries for view in entry.get("views", ()) if not entries[view]["writes"]
                 and not model.events[view]}
        self.ops = [op for op in range(len(entries)) if op not in views]
        self.before = {op: {other for other in self.ops if model.before[op] >> other & 1} for op in self.ops}
        self.duration = {op: entries[op]["duration_ns"] for op in self.ops}
        self.rise = {op: model.rise_bytes(op) for op in self.ops}
        writers = {tensor: [op for op in self.ops if tensor in entries[op]["writes"] and op != maker]
                   for tensor, maker in model.allocator.items()}
        self.size = {(tensor, version): model.sizes[tensor] for tensor in model.allocator
                     if tensor not in model.workspace for version in range(len(writers[tensor]) + 1)}

        def value_at(tensor: int, op: int) -> Value:
            return tensor, sum(writer < op for writer in writers[tensor])

        self.takes: dict[int, set[Value]] = {}
        self.makes: dict[int, set[Value]] = {}
        self.ends: dict[int, set[Value]] = {}  # values that are gone once the op has run
        self.reuses: dict[int, list[Reused]] = {}
        for op in self.ops:
            entry, own = entries[op], {tensor for _, tensor in model.events[op]}
            written = {tensor for tensor in entry["writes"] if tensor in model.allocator} - own
            taken = {tensor for tensor in entry["reads"] if tensor in model.allocator} - own
            self.takes[op] = {value_at(tensor, op) for tensor in taken | written}
            overwritten = {value_at(tensor, op) for tensor in written}
            allocated = {(tensor, 0) for tensor in own - model.workspace}
            self.makes[op] = allocated | {(tensor, version + 1) for tensor, version in overwritten}
            self.ends[op] = overwritten | {value for value in self.size if value[0] in own} - allocated
            self.reuses[op] = [Reused(value_at(reuse.input, op), self.rise[op] - model.rise_bytes(op, reuse.output))
                               for reuse in model.reuses[op]]
        # Once one of these has run, the op has lost a persistent input.
        self.overwriters = {op: {other for other in self.ops if op < other and self._loses(entries[op], entries[other])}
                            for op in self.ops}
        self.outputs = {value for value in self.size if model.output[value[0]]}
        self.may_repeat = {op: entries[op].get("repeatable", False) and not self.makes[op] & self.outputs
                           for op in self.ops}

    def _loses(self, entry: dict, later: dict) -> bool:
        """Whether the later op writes what lasts from step to step and the other reads, but does not write itself."""
        read = set(entry["reads"]) - set(entry["writes"])
        return any(self.step.persistent[tensor] for tensor in read & set(later["writes"]))

    def unplanned_time_ns(self) -> int:
        return sum(self.duration.values())

    def least_peak_bytes(self) -> int:
        """Of all schedules, by trying every state: what has run and what lives. Values may be given up at any time."""
        start = (frozenset[int](), frozenset[Value]())
        lowest = {start: self.step.persistent_bytes}
        open_states = [(self.step.persistent_bytes, 0, start)]
        while True:
            peak, _, (done, live) = heapq.heappop(open_states)
            if len(done) == len(self.ops):
                return peak
            if peak > lowest[done, live]:
                continue
            for reached, state in self._next_states(done, live):
                reached = max(peak, reached)
                if reached < lowest.get(state, reached + 1):
                    lowest[state] = reached
                    heapq.heappush(open_states, (reached, len(lowest), state))

    def _next_states(self, done: frozenset[int], live: frozenset[Value]) -> Iterator[tuple[int, State]]:
        """With the bytes that live on the way there."""
        live_bytes = self.step.persistent_bytes + sum(self.size[value] for value in live)
        for value in live - self.outputs:
            yield live_bytes, (done, live - {value})
        for op in self.ops:
            if not self.takes[op] <= live:
                continue
            if op in done and (not self.may_repeat[op] or done & self.overwriters[op]):
                continue
            if op not in done and not self.before[op] <= done:
                continue
            after = live - self.ends[op] | self.makes[op]
            yield live_bytes + self.rise[op], (done | {op}, after)
            for reused in self.reuses[op]:
                yield live_bytes + self.rise[op] - reused.saved_bytes, (done | {op}, after - {reused.value})

    def least_time_ns(self, limit_bytes: int) -> int:
        """Of all schedules with no higher peak, of which there must be some. With so many repeats that more would take
        longer than what is found."""
        shortest = min((self.duration[op] for op in self.ops if self.may_repeat[op]), default=1)
        repeats = 2
        while True:
            time_ns = BudgetProgram(self, limit_bytes, len(self.ops) + repeats).least_time_ns()
            if time_ns is not None:
                needed = (time_ns - self.unplanned_time_ns()) // shortest
                if needed <= repeats:
                    return time_ns
                repeats = max(repeats, needed - 1)
            repeats += 1


class BudgetProgram:
    """`runs[step, op]` is 1 if the op runs in the step, `lives[step, value]` if the value is there when it begins."""

    def __init__(self, model: BudgetModel, limit_bytes: int, steps: int) -> None:
        self.model = model
        self.solver = highspy.Highs()
        for option, setting in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.999)):
            self.solver.setOptionValue(option, setting)
        self.columns = 0
        self.steps = range(steps)
        self.runs = {(step, op): self._column(model.duration[op]) for step in self.steps for op in model.ops}
        self.lives = {(step, value): self._column() for step in range(steps + 1) for value in model.size}
        self._order_ops()
        for step in self.steps:
            self._carry_over(step)
            self._bound_peak(step, limit_bytes)

    def least_time_ns(self) -> int | None:
        self.solver.run()
        status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        assert status == highspy.HighsModelStatus.kOptimal, status
        return round(self.solver.getObjectiveValue())

    def _column(self, cost: float = 0.0) -> int:
        self.solver.addVar(0.0, 1.0)
        self.solver.changeColCost(self.columns, cost)
        self.solver.changeColIntegrality(self.columns, highspy.HighsVarType.kInteger)
        self.columns += 1
        return self.columns - 1

    def _at_most(self, upper: float, terms: list[tuple[float, int]]) -> None:
        sums: dict[int, float] = {}
        for coefficient, column in terms:
            sums[column] = sums.get(column, 0.0) + coefficient
        self.solver.addRow(-highspy.kHighsInf, upper, len(sums), list(sums), list(sums.values()))

    def _order_ops(self) -> None:
        model = self.model
        for op in model.ops:
            times = [(1.0, self.runs[step, op]) for step in self.steps]
            self._at_most(-1.0, [(-1.0, column) for _, column in times])
            if not model.may_repeat[op]:
                self._at_most(1.0, times)
            for step in self.steps:
                for other in model.before[op]:
                    self._at_most(0.0, [(1.0, self.runs[step, op]),
                                        *((-1.0, self.runs[earlier, other]) for earlier in range(step))])
                for other in model.overwriters[op]:
                    for earlier in range(step):
                        self._at_most(1.0, [(1.0, self.runs[step, op]), (1.0, self.runs[earlier, other])])
        for step in self.steps:
            now = [(1.0, self.runs[step, op]) for op in model.ops]
            self._at_most(1.0, now)
            if step > 0:  # idle steps come last
                self._at_most(0.0, [*now, *((-1.0, self.runs[step - 1, op]) for op in model.ops)])

    def _carry_over(self, step: int) -> None:
        model = self.model
        for value in model.size:
            makers = [self.runs[step, op] for op in model.ops if value in model.makes[op]]
            now, then = self.lives[step, value], self.lives[step + 1, value]
            if step == 0:
                self._at_most(0.0, [(1.0, now)])
            self._at_most(0.0, [(1.0, then), (-1.0, now), *((-1.0, maker) for maker in makers)])
            ends = [(1.0, self.runs[step, op]) for op in model.ops if value in model.ends[op]]
            if ends:
                self._at_most(1.0, [(1.0, then), *ends])
            if value in model.outputs:
                for maker in makers:
                    self._at_most(0.0, [(1.0, maker), (-1.0, then)])
                self._at_most(0.0, [(1.0, now), (-1.0, then), *((-1.0, column) for _, column in ends)])
        for op in model.ops:
            for value in model.takes[op]:
                self._at_most(0.0, [(1.0, self.runs[step, op]), (-1.0, self.lives[step, value])])

    def _bound_peak(self, step: int, limit_bytes: int) -> None:
        """What lives and the rise of the op that runs, less the memory of an input that ends in it."""
        model = self.model
        live = [(model.size[value], self.lives[step, value]) for value in model.size]
        saved: list[tuple[float, int]] = []
        for op in model.ops:
            columns = []
            for reused in model.reuses[op]:
                columns.append((1.0, self._column()))
                saved.append((-reused.saved_bytes, columns[-1][1]))
                self._at_most(1.0, [columns[-1], (1.0, self.lives[step + 1, reused.value])])
            if columns:
                self._at_most(0.0, [*columns, (-1.0, self.runs[step, op])])
        rises = [(model.rise[op], self.runs[step, op]) for op in model.ops]
        self._at_most(limit_bytes - model.step.persistent_bytes, [*live, *rises, *saved])
