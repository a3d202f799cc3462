# SPDX-License-Identifier: Apache-2.0
"""What the page of `stowage report` says in words. Needs no torch."""

from stowage.store import Row, Store
from stowage.text import duration, size


def budget_of(store: Store, run: Row) -> Row | None:
    """What the plan was to stay within; None if it had no budget."""
    rows = store.query("SELECT b.unplanned_peak_bytes, b.unplanned_ns, b.predicted_ns, (SELECT count(program_op) - "
                       "count(DISTINCT program_op) FROM ops AS o WHERE o.run_id = b.run_id) AS repeats "
                       "FROM budgets AS b WHERE b.run_id = ?", run["run_id"])
    return rows[0] if rows else None


def story(run: Row, before: Row, after: Row | None, budget: Row | None, ops: list[Row]) -> list[str]:
    """Sentences: where the peak is, what the plan changed, and how far it is from what is possible."""
    found = []
    if not run["complete"]:
        found.append("The run ended early: what is shown is what was recorded until then.")
    if run["dropped_records"]:
        found.append(f"{run['dropped_records']} records were dropped while recording, so that figures may be too low.")
    if after is None:
        return [f"The peak is {size(before['peak_bytes'])} {_where(before, ops)}.", "The run has no plan.", *found]
    if run["kind"] == "step":
        found += [f"The peak is {size(before['peak_bytes'])} {_where(before, ops)}.",
                  "In a step of a loop nothing moves: the plan gives each tensor an address, and the peak of live bytes stays."]
    else:
        found += [*_about_budget(budget), *_about_order(run, before, after, ops)]
    waste = run["arena_bytes"] - run["arena_bound_bytes"]
    tight = "no layout of this order needs less" if waste <= 0 else (
        f"{size(waste)} more than the {size(run['arena_bound_bytes'])} that no layout can go below")
    time = [f"Planning took {duration(run['planning_ns'])}."] if run["planning_ns"] else []  # 0: as found in the store
    return [*found, f"What the step allocates lies in one arena of {size(run['arena_bytes'])}: {tight}.", *time]


def _where(side: Row, ops: list[Row]) -> str:
    if side["peak_op"] is None:
        return "before the first op"
    op = ops[side["peak_op"]]
    places = [f"in {op['scope']}" if op["scope"] else "", f"at {op['source']}" if op["source"] else ""]
    return " ".join([f"during op {op['op']}, {op['kind']} '{op['name']}'", *filter(None, places)])


def _about_order(run: Row, before: Row, after: Row, ops: list[Row]) -> list[str]:
    saved = before["peak_bytes"] - after["peak_bytes"]
    gap = after["peak_bytes"] - run["bound_bytes"]
    moved = (f"After planning it is {size(after['peak_bytes'])} {_where(after, ops)}: {size(saved)} less." if saved > 0 else
             "The best order found has the same peak.")
    proof = ("That is the lower bound: no order of these ops has a lower peak." if gap <= 0 else
             f"No order of these ops needs less than {size(run['bound_bytes'])}: at most {size(gap)} more could be saved.")
    return [f"In program order the peak is {size(before['peak_bytes'])} {_where(before, ops)}.", moved, proof]


def _about_budget(budget: Row | None) -> list[str]:
    if budget is None:
        return []
    return [f"To stay within a budget, {budget['repeats']} ops run again instead of keeping what they made: without that the "
            f"peak is {size(budget['unplanned_peak_bytes'])}, with it the step is predicted to take "
            f"{budget['predicted_ns'] / max(budget['unplanned_ns'], 1):.3f} times as long."]
