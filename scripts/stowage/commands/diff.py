# SPDX-License-Identifier: Apache-2.0
"""The command that compares two runs."""

import os
from typing import Annotated

import typer

from stowage.commands.common import AsCsv, AsJson, Limit, cut, note_run, print_csv, print_json, suggest
from stowage.commands.memory import place
from stowage.comparing import COLUMNS, Peak, class_changes, peak_of, site_changes
from stowage.store import Row, Store
from stowage.text import NOTHING, good, print_table, printable, size, strong

SIDES = ("a", "b")


def diff(a: Annotated[str, typer.Argument(metavar="A", help="A store, or one of its runs: profile.db or profile.db:2.")],
         b: Annotated[str, typer.Argument(metavar="B", help="What to compare with it.")],
         planned: Annotated[bool, typer.Option("--planned", help="Compare the peaks after planning.")] = False,
         as_json: AsJson = False, as_csv: AsCsv = False, limit: Limit = None) -> None:
    """Two runs compared by call site: whose memory grew or shrank.

    What lives at the peak of A and at that of B, by the op's kind, module, source line and name without its number. What
    is there only at one peak appeared or vanished. All changes add up to the difference of the peaks.
    """
    named = [parse_run(text) for text in (a, b)]
    runs, peaks = zip(*(read_peak(path, run_id, planned) for path, run_id in named))
    change_bytes = peaks[1].where["live_bytes"] - peaks[0].where["live_bytes"]
    classes, sites = class_changes(*peaks), site_changes(*peaks)
    shown = cut(sites, limit, 20, as_json or as_csv, "call sites")
    if as_json:
        sides = {side: {"store": path, "run": run, "peak": found.where}
                 for side, (path, _), run, found in zip(SIDES, named, runs, peaks)}
        return print_json({**sides, "planned": planned, "change_bytes": change_bytes, "by_class": classes, "sites": shown})
    if as_csv:
        return print_csv(shown, COLUMNS)

    for run in runs:
        note_run(run)
    for side, (path, _), run, found in zip(SIDES, named, runs, peaks):
        where = found.where
        at = "before the first op" if where["op"] is None else f"at op {where['op']} {place(where)}"
        print(f"{side}  {printable(path)}:{run['run_id']}  {size(where['live_bytes'])} {at}")
    print_difference(change_bytes, peaks[0])
    print()
    print_table([">change", ">a", ">b", ">tensors", "class"], [
        (signed(row["change_bytes"]), size(row["a_bytes"]), size(row["b_bytes"]), tensor_counts(row), row["class"])
        for row in classes])
    if sites:
        print()
        print_sites(shown, len(sites) - len(shown), change_bytes - sum(row["change_bytes"] for row in shown))
    suggest("peak", named[1][0], runs[1]["run_id"])


def parse_run(text: str) -> tuple[str, int | None]:
    """The store and the run that "profile.db:2" names; a file of that very name is a store."""
    path, colon, run = text.rpartition(":")
    if colon and run.isascii() and run.isdigit() and not os.path.exists(text):
        return path, int(run)
    return text, None


def read_peak(path: str, run_id: int | None, planned: bool) -> tuple[Row, Peak]:
    with Store(path) as opened:
        run = opened.planned_run(run_id) if planned else opened.run(run_id)
        return run, peak_of(opened, run, planned)


def print_difference(change_bytes: int, a: Peak) -> None:
    was = a.where["live_bytes"]
    if change_bytes == 0:
        print("both peaks are the same")
    elif change_bytes < 0:
        print(good(f"b's peak is {size(-change_bytes)} lower" + (f", {-100 * change_bytes / was:.1f} %" if was else "")))
    else:
        print(strong(f"b's peak is {size(change_bytes)} higher" + (f", {100 * change_bytes / was:.1f} %" if was else "")))


def print_sites(sites: list[Row], more: int, more_bytes: int) -> None:
    rest = [(signed(more_bytes), "", "", "", "", f"{more} more", "")] if more else []
    print_table(
        [">change", ">a", ">b", ">tensors", "", "call site", "where"],
        [*((signed(row["change_bytes"]), size(row["a_bytes"]), size(row["b_bytes"]), tensor_counts(row), row["change"],
            call_site(row), " ".join(filter(None, (row["scope"], row["source"])))) for row in sites), *rest])


def call_site(row: Row) -> str:
    """The kind, and the name where it says more."""
    says_more = row["name"] and row["kind"].rpartition("::")[2].strip("_") != row["name"].strip("_")
    return f"{row['kind']} {row['name']}" if says_more else row["kind"]


def signed(change_bytes: int) -> str:
    return NOTHING if change_bytes == 0 else f"{'+' if change_bytes > 0 else ''}{size(change_bytes)}"


def tensor_counts(row: Row) -> str:
    return f"{row['a_tensors']} to {row['b_tensors']}" if row["a_tensors"] != row["b_tensors"] else str(row["a_tensors"])
