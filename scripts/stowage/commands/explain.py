# SPDX-License-Identifier: Apache-2.0
"""The command that says why a run needs what it needs."""

import sys

from stowage.commands.common import AsJson, RunId, StorePath, is_step, note, note_mismatch, note_run, print_json, suggest
from stowage.explaining.graph import explain_graph
from stowage.explaining.graph_text import tell_graph
from stowage.explaining.graph_text import to_json as graph_to_json
from stowage.explaining.loop_text import tell_loop, to_json
from stowage.explaining.moves import explain as explain_step
from stowage.explaining.prose import Terminal
from stowage.store import Row, Store

#: A run of more takes over two seconds.
MANY_OPS = 5_000


def explain(store: StorePath, run_id: RunId = None, as_json: AsJson = False) -> None:
    """Says where the peak is, what lives there, why no order needs less, and what would help.

    Of a step of a loop, if the store has one; else of a run of a graph, the newest planned one.
    """
    with Store(store) as opened:
        run = opened.step(run_id)
        others = _other_names(opened, run) if run_id is None and not is_step(run) else []
        if not is_step(run):
            if run["ops"] >= MANY_OPS and sys.stderr.isatty():
                note(f"{run['ops']} ops, this takes some seconds")
            found = explain_graph(opened, run)
        else:
            in_loop = explain_step(*opened.recorded_step(run))
    if as_json:
        return print_json({"run": run, **(to_json(in_loop) if is_step(run) else graph_to_json(found))})

    note_run(run)
    if others:
        note(f"the store has other runs too, explained with --run: {', '.join(others)}")
    if is_step(run):
        note_mismatch("the record", {"live_bytes": in_loop.peak.live_bytes}, run["unplanned_peak_bytes"])
        tell_loop(in_loop, Terminal(width=None))
    else:
        note_mismatch("the record", {"live_bytes": found.before.peak_bytes}, run["unplanned_peak_bytes"])
        if found.after is not None:
            note_mismatch("the plan", {"live_bytes": found.after.peak_bytes}, run["planned_peak_bytes"])
        tell_graph(found, run, Terminal())
    suggest("peak", store, run["run_id"])


def _other_names(store: Store, run: Row) -> list[str]:
    """The newest planned runs of what else the store has, each with its id."""
    newest = {each["name"]: each["run_id"] for each in store.runs() if each["planned_peak_bytes"] is not None}
    return [f"{run_id} '{name}'" for name, run_id in newest.items() if name != run["name"]]
