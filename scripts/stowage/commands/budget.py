# SPDX-License-Identifier: Apache-2.0
"""The command that shows what less memory would cost in time."""

import sys
from typing import Annotated

import typer

from stowage.commands.common import AsCsv, AsJson, StorePath, note, note_run, print_csv, print_json, suggest
from stowage.commands.plotting import drawn, new_plot, unit_of
from stowage.problem import choose_run, to_problem
from stowage.solving import plan_budgets
from stowage.store import Row, Store
from stowage.text import duration, print_table, printable, size


def budget(
    store: StorePath,
    points: Annotated[int, typer.Option(min=2, metavar="N", help="How many budgets.")] = 20,
    limit: Annotated[str | None, typer.Option("--budget", metavar="SIZE", help="Only this: 6GiB; 0.5 of the peak.")] = None,
    slowdown: Annotated[float | None, typer.Option(min=1, metavar="RATIO", help="Only the least peak in this time.")] = None,
    run_id: Annotated[int | None, typer.Option("--run", metavar="ID", help="Which run; else the newest of a graph.")] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """What less memory would cost in time.

    Peak against predicted time, where ops run again instead of keeping what they made. Planned from the measured times
    and sizes in the store; nothing is trained. The bound is the time below which no schedule fits the budget. Exits 1 if
    the one budget asked for cannot be met.
    """
    if limit is not None and slowdown is not None:
        raise typer.BadParameter("--budget and --slowdown exclude one another; give one")
    with Store(store) as opened:
        run = choose_run(opened, run_id)
        step = to_problem(opened, run)
    asked = (["--budget", limit] if limit is not None else ["--slowdown", str(slowdown)] if slowdown is not None else
             ["--points", str(points)])
    found = plan_budgets(step, asked)
    unmet = unmet_budget(found, limit)
    if as_json:
        print_json({"run": run, **found})
    elif as_csv:
        print_csv(found["rows"])
    else:
        note_run(run)
        print_budgets(found)
        if len(found["rows"]) > 1:
            print()
            print(plot(found))
    if unmet:
        note(unmet)
        sys.exit(1)
    if not as_json and not as_csv:
        suggest("peak", store, run["run_id"])


def unmet_budget(found: Row, limit: str | None) -> str | None:
    """What to say where the budget asked for is not met."""
    if limit is None or found["rows"][0]["peak_bytes"] <= found["rows"][0]["budget_bytes"]:
        return None
    asked, least, bound = found["rows"][0]["budget_bytes"], found["least_peak_bytes"], found["bound_peak_bytes"]
    how = "which is proven" if least == bound else f"and none is below {size(bound)}"
    return f"cannot meet the budget of {size(asked)}: the least peak found is {size(least)}, {how}"


def print_budgets(found: Row) -> None:
    print(f"unplanned  {size(found['unplanned_peak_bytes'])} in {duration(found['unplanned_time_ns'])}")
    print(f"least      {size(found['least_peak_bytes'])}; no schedule needs less than {size(found['bound_peak_bytes'])}")
    print()
    print_table(
        [">budget", ">peak", ">of unplanned", ">predicted", ">bound", ">run again", "status"],
        [(size(row["budget_bytes"]), size(row["peak_bytes"]),
          f"{100 * row['peak_bytes'] / max(found['unplanned_peak_bytes'], 1):.1f} %", f"{row['time_ratio']:.3f}",
          f"{row['bound_time_ratio']:.3f}", row["repeats"], row["status"]) for row in found["rows"]])


def plot(found: Row) -> str:
    """Peaks over predicted times."""
    times = [row["time_ratio"] for row in found["rows"]]
    unit, unit_bytes = unit_of(found["unplanned_peak_bytes"])
    peaks = [row["peak_bytes"] / unit_bytes for row in found["rows"]]
    plot = new_plot(f"{printable(found['name'])}: peak in {unit} over predicted time, 1 is the unplanned step's")
    plot.plot(times, peaks, marker=".")
    plot.scatter(times, peaks, marker="o")
    return drawn(plot)
