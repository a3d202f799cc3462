# SPDX-License-Identifier: Apache-2.0
"""What each tensor of a run is for: a parameter, a gradient, an activation that the forward saves. Needs no torch."""

from collections import defaultdict
from dataclasses import dataclass

from stowage import peaks
from stowage.store import Row, Store

PARAMETERS, BUFFERS, OPTIMIZER_STATE, CONSTANTS = "parameters", "buffers", "optimizer state", "constants"
BATCH, INPUTS, OUTPUTS = "batch", "inputs", "outputs"
SAVED, GRADIENTS, TEMPORARIES, WORKSPACE = "saved activations", "gradients", "temporaries", "workspace"
#: In the order in which to draw them, one upon the other: what lives throughout first, what comes and goes last.
#: `INPUTS` are those of a graph that is no captured step, which does not say what they are for.
CLASSES = (PARAMETERS, BUFFERS, OPTIMIZER_STATE, CONSTANTS, INPUTS, BATCH, OUTPUTS, SAVED, GRADIENTS, TEMPORARIES,
           WORKSPACE)

# As capture names the inputs of a step.
_PREFIXES = {"p_": PARAMETERS, "b_": BUFFERS, "s_": OPTIMIZER_STATE, "g_": GRADIENTS, "input_": BATCH, "target_": BATCH,
             "c_": CONSTANTS}
_UPDATED = (PARAMETERS, OPTIMIZER_STATE, GRADIENTS)
_OF_LOOP = {peaks.GRADIENTS: GRADIENTS, peaks.STATE: OPTIMIZER_STATE, peaks.SAVED: SAVED, peaks.KEPT: OUTPUTS}


@dataclass(frozen=True)
class Phases:
    """The phases of a captured step: its forward, its backward and its updates, which a plan may mix."""

    forward_end_op: int  # that makes the loss
    updates: frozenset[int]  # ops that help to update a parameter


def classes_of(store: Store, run: Row) -> dict[int, str]:
    """The class of each tensor, by its id."""
    tensors = store.query("SELECT tensor, name, kind FROM tensors WHERE run_id = ? ORDER BY tensor", run["run_id"])
    if run["kind"] == "step":
        return _classes_of_loop(store, run, tensors)
    phases = phases_of(store, run)
    found = {tensor["tensor"]: _class_by_kind(tensor, phases is not None) for tensor in tensors}
    if phases is not None:
        users = defaultdict(list)
        for use in store.query("SELECT op, tensor FROM uses WHERE run_id = ?", run["run_id"]):
            users[use["tensor"]].append(use["op"])
        for each in store.query("SELECT tensor, op FROM allocations WHERE run_id = ?", run["run_id"]):
            if found[each["tensor"]] == TEMPORARIES:
                found[each["tensor"]] = _class_by_life(each["op"], users[each["tensor"]], phases)
    return found


def phases_of(store: Store, run: Row) -> Phases | None:
    """None for a run of a graph that is no captured step: it makes no loss, or has no parameters."""
    run_id = run["run_id"]
    inputs = store.query("SELECT tensor, name FROM tensors WHERE run_id = ? AND kind = 'input'", run_id)
    params = {tensor["name"].removeprefix("p_") for tensor in inputs if tensor["name"].startswith("p_")}
    loss = store.query("""
        SELECT max(u.op) AS op FROM uses AS u JOIN tensors AS t ON t.run_id = u.run_id AND t.tensor = u.tensor
        WHERE t.run_id = ? AND t.kind = 'output' AND t.name = 'loss' AND u.kind <> 'read'""", run_id)[0]["op"]
    if loss is None or not params:
        return None
    # As written, the updates follow the whole backward. The order of a graph that a budget has made is another.
    ops = store.query("SELECT op, name, kind FROM ops WHERE run_id = ? ORDER BY coalesce(program_op, op), op", run_id)
    places = {op["op"]: place for place, op in enumerate(ops)}
    updated = {tensor["tensor"] for tensor in inputs if _class_of_input(tensor["name"]) in _UPDATED}
    writes = store.query("SELECT op, tensor FROM uses WHERE run_id = ? AND kind = 'write'", run_id)
    first = min((places[use["op"]] for use in writes if use["tensor"] in updated and places[use["op"]] > places[loss]),
                default=len(ops))
    # Whether the update begins with a gradient negated or decayed, no use tells: the backward may end like that too. But
    # what updates a parameter is named after it.
    while first > places[loss] + 1 and _updated_by(ops[first - 1]) in params:
        first -= 1
    return Phases(loss, frozenset(op["op"] for op in ops[first:]))


def _updated_by(op: Row) -> str:
    return op["name"].removeprefix(op["kind"].rpartition("::")[2] + "_")


def _class_of_input(name: str) -> str:
    return next((found for prefix, found in _PREFIXES.items() if name.startswith(prefix)), INPUTS)


def _class_by_kind(tensor: Row, is_captured: bool) -> str:
    if tensor["kind"] == "input":
        return _class_of_input(tensor["name"]) if is_captured else INPUTS
    return {"constant": CONSTANTS, "output": OUTPUTS, "workspace": WORKSPACE}.get(tensor["kind"], TEMPORARIES)


def _class_by_life(op: int, users: list[int], phases: Phases) -> str:
    """Of what the step allocates at `op` and frees."""
    if op <= phases.forward_end_op:
        return SAVED if max(users, default=op) > phases.forward_end_op else TEMPORARIES
    return GRADIENTS if op not in phases.updates and not phases.updates.isdisjoint(users) else TEMPORARIES


def _classes_of_loop(store: Store, run: Row, tensors: list[Row]) -> dict[int, str]:
    found = {tensor["tensor"]: WORKSPACE if tensor["kind"] == "workspace" else TEMPORARIES for tensor in tensors}
    allocated = store.query("SELECT tensor FROM allocations WHERE run_id = ? ORDER BY allocate_event", run["run_id"])
    if not allocated:
        return found
    step = peaks.Step(*store.recorded_step(run))
    for row, allocation in zip(allocated, step.allocations, strict=True):
        if found[row["tensor"]] == TEMPORARIES:
            found[row["tensor"]] = _OF_LOOP.get(step.class_of(allocation), TEMPORARIES)
    return found
