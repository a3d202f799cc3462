# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of a run of a graph, in words: where its peak is, and what changed it. Needs no torch."""

from dataclasses import asdict
from typing import Any

from stowage import roles
from stowage.explaining import graph
from stowage.explaining.graph import Changes, GraphExplanation, Help, Share, Side
from stowage.explaining.prose import Writer, counted, less, ordinal, percent
from stowage.explaining.reasons import limits_of, tell_binding, tell_proof
from stowage.store import Row
from stowage.text import NOTHING, size

#: The section that says what lives at the peak.
AT_PEAK = "What lives at the peak"
_MOST_MODULES = 10
_CLASSES = {
    roles.PARAMETERS: "parameters",
    roles.BUFFERS: "buffers of the model",
    roles.OPTIMIZER_STATE: "optimizer state",
    roles.CONSTANTS: "constants",
    roles.INPUTS: "inputs of the graph",
    roles.BATCH: "the batch",
    roles.OUTPUTS: "results, which live to the end",
    roles.SAVED: "saved activations: made by the forward, needed by the backward",
    roles.GRADIENTS: "gradients, until their update",
    roles.TEMPORARIES: "temporaries",
    roles.WORKSPACE: "workspace of the op itself",
}


def to_json(found: GraphExplanation) -> dict[str, Any]:
    binding = found.binding
    bound_by = None if binding is None else "weights" if binding.is_weights_bound else "activations"
    return {**asdict(found), "bound_by": bound_by}


def tell_graph(found: GraphExplanation, run: Row, out: Writer) -> None:
    _tell_peaks(found, run, out)
    out.head(AT_PEAK)
    _tell_shares(found.before.classes, found.after.classes if found.after else None, _CLASSES, out)
    if any(share.name for share in found.before.modules):
        out.head("By module" if found.modules_are_recorded else "By module, as far as names of parameters tell")
        names = {"": "no module: the batch, constants"}
        _tell_shares(found.before.modules, found.after.modules if found.after else None, names, out, _MOST_MODULES)
    tell_proof(found, run, out)
    if found.changes is not None and found.after is not None:
        out.head("What the plan changed")
        for line in _changes(found.changes, found.before, found.after):
            out.item(line)
    out.head("What keeps the order" if found.after is None else "What the plan could not change")
    for line in limits_of(found):
        out.item(line)
    if found.binding is not None:
        tell_binding(found.binding, found, out)
    out.head("What would help next")
    now = (found.after or found.before).peak_bytes
    for help_ in found.helps:
        out.item(_help(help_, now))
    if not found.helps:
        out.item("nothing that can be reckoned from this run")


def _tell_peaks(found: GraphExplanation, run: Row, out: Writer) -> None:
    batch = f" at batch {found.binding.batch}" if found.binding else ""
    again = f", {found.repeats} of them run again within a budget" if found.repeats else ""
    out.title(f"Peak of '{run['name']}'{batch}, {counted(run['ops'], 'op')}{again}")
    _tell_side("before planning", found.before, "", out)
    if found.after is not None:
        _tell_side("after planning", found.after, less(found.after.peak_bytes, found.before.peak_bytes), out)
        bound, peak = run["bound_bytes"], found.after.peak_bytes
        how = ("no order of these ops needs less: this one is the best" if peak == bound else
               f"no order needs less; whether one below {size(peak)} exists is not known")
        out.fact(f"{'proven bound':<15}  {size(bound):>10}  {how}")
    out.say(_forward_end(found))


def _tell_side(when: str, side: Side, less: str, out: Writer) -> None:
    out.fact(f"{when:<15}  {size(side.peak_bytes):>10}  {', '.join(filter(None, (less, _where(side))))}")
    if side.op is not None:
        out.fact(f"{'':<29}{op_text(side.op)}")


def op_text(op: Row) -> str:
    """Such as "op 7 aten::mm 'mm_1' in layer1 at net.py:12"."""
    scope, source = (f" in {op['scope']}" if op["scope"] else ""), (f" at {op['source']}" if op["source"] else "")
    return f"op {op['op']} {op['kind']} '{op['name']}'{scope}{source}"


def _where(side: Side) -> str:
    if side.place == graph.START:
        return "before the first op"
    if side.place == graph.END_OF_FORWARD:
        return "at the end of the forward"
    if side.place == graph.GRAPH:
        return f"at the {ordinal(side.place_number)} of {side.place_ops} ops"
    place, whose = ("updates", "their") if side.place == graph.UPDATE else (side.place, "its")
    number = "last" if side.place_number == side.place_ops else ordinal(side.place_number)
    return f"in the {place}, the {number} of {whose} {side.place_ops} ops"


def _forward_end(found: GraphExplanation) -> str:
    """Whether the peak is where people take it to be."""
    sides = [side for side in (found.before, found.after) if side is not None]
    if found.before.forward_end_op is None:
        return "The graph is no captured training step: it has no end of the forward that could be named."
    at_end = [side.place == graph.END_OF_FORWARD for side in sides]
    lives = [size(side.forward_end_bytes) for side in sides]
    below = [percent(1 - (side.forward_end_bytes or 0) / max(side.peak_bytes, 1)) for side in sides]
    if all(at_end):
        return "The peak is where many look for it: at the end of the forward, while the loss is made."
    if len(set(zip(lives, below))) == 1:
        return f"The peak is not at the end of the forward: {lives[0]} live there, {below[0]} below the peak."
    if at_end[0]:
        return (f"As written, the peak is at the end of the forward. As planned it is not: {lives[1]} live there, {below[1]} "
                "below the peak.")
    if at_end[1]:
        return (f"As written, the peak is not at the end of the forward: {lives[0]} live there, {below[0]} below the peak. As "
                "planned it is.")
    if lives[0] == lives[1]:
        return (f"The peak is not at the end of the forward: {lives[0]} live there, {below[0]} below the peak before planning "
                f"and {below[1]} below that after.")
    return (f"The peak is not at the end of the forward: before planning {lives[0]} live there, {below[0]} below the peak, "
            f"and after it {lives[1]}, {below[1]} below.")


def _tell_shares(before: list[Share], after: list[Share] | None, names: dict[str, str], out: Writer,
                 most: int | None = None) -> None:
    sides = [before] if after is None else [before, after]
    shares = [{share.name: share for share in side} for side in sides]
    order = list(dict.fromkeys(share.name for share in before + (after or [])))
    kept, rest = order[:most], order[most or len(order):]

    def row(members: list[str], what: str) -> list[str]:
        cells = []
        for side in shares:
            found = [side[name] for name in members if name in side]
            tensors = sum(share.tensors for share in found)
            size_bytes = sum(share.size_bytes for share in found)
            cells += [size(size_bytes), str(tensors)] if found else [NOTHING, NOTHING]
        return [*cells, what]

    rows = [row([name], names.get(name, name)) for name in kept]
    rows += [row(rest, f"{len(rest)} more")] if rest else []
    titles = [">size", ">tensors"] if after is None else [">before", ">tensors", ">after", ">tensors"]
    out.table([*titles, ""], [*rows, row(order, "together: the peak")])


def _changes(changes: Changes, before: Side, after: Side) -> list[str]:
    lines = [f"moved to another place in the order: {changes.moved_ops} of {changes.ops} ops"
             + ("; 'stowage plan' lists them" if changes.moved_ops else "")]
    early, as_written = changes.gradients - after.gradients_kept, changes.gradients - before.gradients_kept
    if early != as_written:
        lines.append(f"updates moved up: {early} of {changes.gradients} gradients are used and freed before the backward "
                     f"ends; as written, {as_written or 'none'}")
    if changes.reused_tensors:
        lines.append(f"written over an input that dies there: {counted(changes.reused_tensors, 'result')}, "
                     f"{size(changes.reused_bytes)} over the whole step, which take no memory of their own")
    saved = before.peak_bytes - after.peak_bytes
    return [*lines, f"together they take {size(saved)} off the peak" if saved else "the peak stays as it was"]


def _help(help_: Help, now: int) -> str:
    time = f", predicted for {help_.time_ratio:.3f} times" if help_.time_ratio is not None else ""
    if help_.peak_bytes is None:
        return f"{help_.name}: would not help"
    return f"{help_.name}: {size(help_.peak_bytes)}, {less(help_.peak_bytes, now)}{time}; {help_.how}"
