# SPDX-License-Identifier: Apache-2.0
"""Makes the solver's problem of a recorded run, as the plugin does in bridge.cpp. Needs no torch."""

from collections import defaultdict
from typing import Any

from stowage.store import HELD_KINDS, Row, Store, StoreError

FORMAT = "stowage-step/1"


def choose_run(store: Store, run_id: int | None) -> Row:
    """The run of a graph as it was written, complete and lossless, with that id; for None the newest such run."""
    if run_id is not None:
        run = store.run(run_id)
        reason = _why_not(store, run)
        if reason:
            raise StoreError(f"cannot plan run {run_id} of store '{store.path}' within a budget: {reason}")
        return run
    runs = store.runs()
    for run in reversed(runs):
        if _why_not(store, run) is None:
            return store.run(run["run_id"])
    if not runs:
        return store.run(None)  # says that there is none
    newest = runs[-1]
    raise StoreError(f"cannot plan store '{store.path}' within a budget: it has no run to plan from; of run "
                     f"{newest['run_id']}, {_why_not(store, newest)}")


def _why_not(store: Store, run: Row) -> str | None:
    """What keeps a run from being planned within a budget, and how to mend it."""
    if run["kind"] == "step":
        return "it is a step of a loop, in which nothing moves or runs again; capture the step with stowage.capture"
    if not run["complete"]:
        return "it ended early; profile again"
    if run["dropped_records"] > 0:
        return f"{run['dropped_records']} records dropped; profile again"
    found = store.query("SELECT count(*) AS ops, coalesce(sum(repeatable), 0) AS repeatable, count(program_op) AS repeats "
                        "FROM ops WHERE run_id = ?", run["run_id"])[0]
    if found["repeats"] > 0:
        return "it is of a graph that a budget has made; choose the run of the graph as it was written"
    if found["repeatable"] == 0:
        return "none of its ops is known to be repeatable; profile again, as runs of older versions do not say"
    return None


def to_problem(store: Store, run: Row) -> Row:
    """The step as JSON of the format `stowage-step/1`: bytes and nanoseconds, ids as in the store."""
    run_id = run["run_id"]
    tensors = store.query("SELECT tensor AS id, name, size_bytes, kind FROM tensors WHERE run_id = ? ORDER BY id", run_id)
    ops = store.query("SELECT op AS id, name, kind, duration_ns, repeatable FROM ops WHERE run_id = ? ORDER BY id", run_id)
    allocations = store.query("SELECT tensor, op, allocate_event, free_event FROM allocations WHERE run_id = ? "
                              "ORDER BY allocation", run_id)
    uses = store.query("SELECT op, tensor, kind FROM uses WHERE run_id = ? ORDER BY use", run_id)
    dependencies = store.query("SELECT op, after_op, reason FROM dependencies WHERE run_id = ? ORDER BY dependency", run_id)
    reuses = store.query("SELECT op, tensor, of_tensor FROM reuses WHERE run_id = ? ORDER BY reuse", run_id)

    fields: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    own = {(each["op"], each["tensor"]) for each in allocations}
    for use in uses:
        # An op's own allocation is no read of it: what allocates comes first anyhow.
        if use["kind"] == "write":
            _add(fields[use["op"]]["writes"], use["tensor"])
        elif (use["op"], use["tensor"]) not in own:
            _add(fields[use["op"]]["reads"], use["tensor"])
    views = view_makers(uses, allocations)
    for dependency in dependencies:
        _add(fields[dependency["op"]]["after"], dependency["after_op"])
        if dependency["reason"] == "value" and dependency["after_op"] in views:
            _add(fields[dependency["op"]]["views"], dependency["after_op"])
    for op, event in events_of(tensors, allocations):
        fields[op]["events"].append(event)
    for reuse in reuses:
        fields[reuse["op"]]["reuses"].append({"output": reuse["tensor"], "input": reuse["of_tensor"]})
    return {
        "format": FORMAT,
        "name": run["name"],
        "tensors": [_to_tensor(tensor, run["alignment_bytes"]) for tensor in tensors],
        "ops": [{**op, "repeatable": bool(op["repeatable"]),
                 **{name: fields[op["id"]][name] for name in ("reads", "writes", "events", "after", "views", "reuses")}}
                for op in ops],
    }


def view_makers(uses: list[Row], allocations: list[Row]) -> set[int]:
    """Ops that allocate nothing and return what another op has allocated."""
    return {use["op"] for use in uses if use["kind"] == "result"} - {each["op"] for each in allocations}


def events_of(tensors: list[Row], allocations: list[Row]) -> list[tuple[int, Row]]:
    """The allocations, and the frees of workspaces, in the order in which they happened, each with its op."""
    workspaces = {tensor["id"] for tensor in tensors if tensor["kind"] == "workspace"}
    timed = [(each["allocate_event"], each["op"], {"allocate": each["tensor"]}) for each in allocations]
    timed += [(each["free_event"], each["op"], {"free": each["tensor"]}) for each in allocations
              if each["tensor"] in workspaces and each["free_event"] is not None]
    return [(op, event) for _, op, event in sorted(timed, key=lambda entry: entry[0])]


def _to_tensor(tensor: Row, alignment_bytes: int) -> Row:
    is_output = tensor["kind"] == "output"
    return {"id": tensor["id"], "name": tensor["name"], "size_bytes": tensor["size_bytes"],
            "alignment_bytes": alignment_bytes, "persistent": tensor["kind"] in HELD_KINDS,
            "output": is_output, "external": is_output}


def _add(ids: list[int], value: int) -> None:
    if value not in ids:
        ids.append(value)
