# SPDX-License-Identifier: Apache-2.0
"""The lowest peak of a step as an integer program, solved by HiGHS.

For ops u and v, `first[u, v]` is 1 if u runs before v: a linear order, so of every three ops no cycle. A tensor lives
before v if its allocating op runs before v and some user does not. The peak is no less, at any v, than what lives
before it and v's own rise; the rise is the lower one, with reuse, only if all other users of an input run before v.
"""

import highspy

from solver.step_model import StepModel

Term = tuple[float, int | None]  # coefficient and column, or None for a constant


class PeakProgram:
    def __init__(self, model: StepModel, with_reuse: bool = True) -> None:
        self.model = model
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("mip_rel_gap", 0.0)
        # Sizes are whole, so two peaks that differ do so by 1 at least.
        self.solver.setOptionValue("mip_abs_gap", 0.999)
        self.columns = 0
        self.peak = self._column(highspy.kHighsInf, cost=1.0)
        self.first: dict[tuple[int, int], int] = {}
        self._order_ops()
        for op in range(len(model.ops)):
            self._bound_peak(op, with_reuse)

    def lowest_peak_bytes(self) -> int:
        self.solver.run()
        status = self.solver.getModelStatus()
        assert status == highspy.HighsModelStatus.kOptimal, status
        return round(self.solver.getObjectiveValue())

    def _column(self, upper: float, cost: float = 0.0, is_integer: bool = False) -> int:
        self.solver.addVar(0.0, upper)
        column = self.columns
        self.columns += 1
        if cost:
            self.solver.changeColCost(column, cost)
        if is_integer:
            self.solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        return column

    def _at_least(self, lower: float, terms: list[Term]) -> None:
        """Adds the row: sum of terms >= lower."""
        sums: dict[int, float] = {}
        for coefficient, column in terms:
            if column is None:
                lower -= coefficient
            else:
                sums[column] = sums.get(column, 0.0) + coefficient
        self.solver.addRow(lower, highspy.kHighsInf, len(sums), list(sums), list(sums.values()))

    def _is_before(self, op: int, other: int, sign: float = 1.0) -> list[Term]:
        """sign x first[op, other], where first[u, v] + first[v, u] = 1."""
        if self.model.before[other] >> op & 1:
            return [(sign, None)]
        if self.model.before[op] >> other & 1:
            return []
        if op < other:
            return [(sign, self.first[op, other])]
        return [(sign, None), (-sign, self.first[other, op])]

    def _order_ops(self) -> None:
        count = len(self.model.ops)
        for op in range(count):
            for other in range(op + 1, count):
                if not self.model.before[other] >> op & 1:
                    self.first[op, other] = self._column(1.0, is_integer=True)
        for op in range(count):
            for other in range(op + 1, count):
                for third in range(other + 1, count):
                    for cycle in ((op, other, third), (op, third, other)):
                        self._forbid_cycle(*cycle)

    def _forbid_cycle(self, a: int, b: int, c: int) -> None:
        """Not a before b before c before a."""
        terms = [*self._is_before(a, b, -1.0), *self._is_before(b, c, -1.0), *self._is_before(c, a, -1.0)]
        free = sum(column is not None for _, column in terms)
        if free >= 2 and sum(self.model.before[y] >> x & 1 for x, y in ((b, a), (c, b), (a, c))) == 0:
            self._at_least(-2.0, terms)

    def _bound_peak(self, op: int, with_reuse: bool) -> None:
        model = self.model
        rise = model.rise_bytes(op)
        terms: list[Term] = [(1.0, self.peak)]
        for tensor, allocator in model.allocator.items():
            if tensor in model.workspace or allocator == op or model.sizes[tensor] == 0:
                continue
            terms += [(-model.sizes[tensor] * coefficient, column)
                      for coefficient, column in self._lives_before(op, tensor, allocator)]
        saved = rise - model.rise_bytes(op, model.reuses[op][0].output) if model.reuses[op] else 0
        if with_reuse and saved > 0:
            terms.append((saved, self._reuse(op)))
        self._at_least(model.persistent_bytes + rise, terms)

    def _lives_before(self, op: int, tensor: int, allocator: int) -> list[Term]:
        model = self.model
        is_allocated = self._is_before(allocator, op)
        if not is_allocated or model.output[tensor] or model.users[tensor] >> op & 1:
            return is_allocated
        users = [user for user in range(len(model.ops)) if model.users[tensor] >> user & 1]
        waits = [self._is_before(op, user) for user in users if user != allocator]
        waits = [terms for terms in waits if terms]
        if is_allocated == [(1.0, None)] and [(1.0, None)] in waits:
            return is_allocated
        if not waits:  # every user runs before the op
            return []
        lives = self._column(1.0)
        for terms in waits:
            self._at_least(-1.0, [(1.0, lives), *((-coefficient, column) for coefficient, column in is_allocated),
                                  *((-coefficient, column) for coefficient, column in terms)])
        return [(1.0, lives)]

    def _reuse(self, op: int) -> int:
        """A column that is at most 1, and 0 unless some input ends its life in the op."""
        reused = self._column(1.0)
        inputs: list[Term] = []
        for reuse in self.model.reuses[op]:
            ends = self._column(1.0)
            inputs.append((1.0, ends))
            for user in range(len(self.model.ops)):
                if user != op and self.model.users[reuse.input] >> user & 1:
                    self._at_least(0.0, [(-1.0, ends), *self._is_before(user, op)])
        self._at_least(0.0, [(-1.0, reused), *inputs])
        return reused
