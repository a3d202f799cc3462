# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of a run of a graph, in words. Needs no torch."""

import os
import sys
import textwrap
from dataclasses import asdict
from typing import Any

import typer

from stowage import graph_explaining as explaining
from stowage import limits, roles
from stowage.graph_explaining import Changes, GraphExplanation, Help, Share, Side
from stowage.limits import Limit, Proof
from stowage.scaling import Binding
from stowage.store import Row
from stowage.text import NOTHING, print_table, printable, size

_WIDTH = 110
_MOST_MODULES, _MOST_FACTS, _MOST_KINDS = 10, 6, 3
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
_REASONS = {
    limits.RANDOM: "draw random numbers in the order as written, so that a seed gives the same ones",
    limits.EFFECT: "have effects (a parameter is written, an error may be raised) and keep their order",
    limits.BARRIER: "may not cross an op that stowage does not know",
}


def to_json(found: GraphExplanation) -> dict[str, Any]:
    binding = found.binding
    bound_by = None if binding is None else "weights" if binding.is_weights_bound else "activations"
    return {**asdict(found), "bound_by": bound_by}


def print_graph_explanation(found: GraphExplanation, run: Row) -> None:
    _print_peaks(found, run)
    _head("What lives at the peak")
    _print_shares(found.before.classes, found.after.classes if found.after else None, _CLASSES)
    if any(share.name for share in found.before.modules):
        _head("By module" if found.modules_are_recorded else "By module, as far as names of parameters tell")
        names = {"": "no module: the batch, constants"}
        _print_shares(found.before.modules, found.after.modules if found.after else None, names, _MOST_MODULES)
    _print_proof(found, run)
    if found.changes is not None and found.after is not None:
        _head("What the plan changed")
        for line in _changes(found.changes, found.before, found.after):
            _item(line)
    _head("What keeps the order" if found.after is None else "What the plan could not change")
    for line in [_throughout(found), *map(_limit, found.limits)]:
        _item(line)
    if found.binding is not None:
        _print_binding(found.binding, found)
    _head("What would help next")
    now = (found.after or found.before).peak_bytes
    for help_ in found.helps:
        _item(_help(help_, now))
    if not found.helps:
        _item("nothing that can be reckoned from this run")


def _print_peaks(found: GraphExplanation, run: Row) -> None:
    _head("Peak", first=True)
    _print_side("before planning", found.before, "")
    if found.after is not None:
        _print_side("after planning", found.after, _less(found.after.peak_bytes, found.before.peak_bytes))
        bound, peak = run["bound_bytes"], found.after.peak_bytes
        how = ("no order of these ops needs less: this one is the best" if peak == bound else
               f"no order needs less; whether one below {size(peak)} exists is not known")
        print(f"  {'proven bound':<15}  {size(bound):>10}  {how}")
    print()
    _say(_forward_end(found))


def _print_side(when: str, side: Side, less: str) -> None:
    print(printable(f"  {when:<15}  {size(side.peak_bytes):>10}  {', '.join(filter(None, (less, _where(side))))}"))
    if side.op is not None:
        print(printable(f"{'':<31}{op_text(side.op)}"))


def op_text(op: Row) -> str:
    """Such as "op 7 aten::mm 'mm_1' in layer1 at net.py:12"."""
    scope, source = (f" in {op['scope']}" if op["scope"] else ""), (f" at {op['source']}" if op["source"] else "")
    return f"op {op['op']} {op['kind']} '{op['name']}'{scope}{source}"


def _where(side: Side) -> str:
    if side.place == explaining.START:
        return "before the first op"
    if side.place == explaining.END_OF_FORWARD:
        return "at the end of the forward"
    place = "updates" if side.place == explaining.UPDATE else side.place
    return f"in the {place}, {side.place_number} of {side.place_ops} ops in"


def _forward_end(found: GraphExplanation) -> str:
    """Whether the peak is where people take it to be."""
    sides = [side for side in (found.before, found.after) if side is not None]
    if found.before.forward_end_op is None:
        return "The graph is no captured training step: it has no end of the forward that could be named."
    at_end = [side.place == explaining.END_OF_FORWARD for side in sides]
    if all(at_end):
        return "The peak is at the end of the forward, while the loss is made."
    lives = [f"{size(side.forward_end_bytes)} live, {_percent(1 - (side.forward_end_bytes or 0) / max(side.peak_bytes, 1))} "
             "below the peak" for side in sides]
    same = len(set(lives)) == 1
    text = f"{lives[0]}." if same else f"{lives[0]}, before planning; {lives[1]}, after."
    if any(at_end):
        return (f"While the loss is made, at the end of the forward, {text} So planning moved the peak "
                f"{'there' if at_end[-1] else 'from there'}.")
    return f"The peak is not at the end of the forward: while the loss is made, {text}"


def _print_shares(before: list[Share], after: list[Share] | None, names: dict[str, str], most: int | None = None) -> None:
    sides = [before] if after is None else [before, after]
    shares = [{share.name: share for share in side} for side in sides]
    order = list(dict.fromkeys(share.name for share in before + (after or [])))
    kept, rest = order[:most], order[most or len(order):]

    def row(members: list[str], what: str) -> list[str]:
        cells = []
        for side in shares:
            found = [side[name] for name in members if name in side]
            tensors = sum(share.tensors for share in found)
            cells += [size(sum(share.size_bytes for share in found)) if found else NOTHING, str(tensors) if found else NOTHING]
        return [*cells, what]

    rows = [row([name], names.get(name, name)) for name in kept]
    rows += [row(rest, f"{len(rest)} more")] if rest else []
    titles = [">size", ">tensors"] if after is None else [">before", ">tensors", ">after", ">tensors"]
    print_table(["", *titles, ""], [["", *cells] for cells in [*rows, row(order, "together: the peak")]])


def _print_proof(found: GraphExplanation, run: Row) -> None:
    if found.proof is None:
        _head("Why no order needs less")
        _say(f"Not shown: {found.unproven}.")
        return
    proof = found.proof
    _head(f"Why no order needs less than {size(proof.bound_bytes)}")
    if proof.op < 0:
        _say("That much lives throughout: inputs and constants.")
        return
    _say(f"While op {proof.op} '{found.op_names.get(proof.op, '')}' runs, whenever that is, these must live: made by an op "
         "that has to run before it, or by itself, and needed by it or by one that has to run after it.")
    print_table(["", ">size", "what", "why"], [["", *cells] for cells in _facts(found, proof)])
    if run["bound_bytes"] is not None and run["bound_bytes"] > proof.bound_bytes:
        _say(f"Nor than {size(run['bound_bytes'])}: the search has ruled out all orders below that.")


def _facts(found: GraphExplanation, proof: Proof) -> list[list[str]]:
    rows = [[size(proof.throughout_bytes), "inputs and constants", "live throughout"]]
    for fact in proof.tensors[:_MOST_FACTS]:
        made = "made by it" if fact["made_by"] == proof.op else f"made by op {fact['made_by']} '{fact['made_by_name']}' before it"
        used = ("" if fact["used_by"] < 0 else ", needed by it" if fact["used_by"] == proof.op else
                f", needed by op {fact['used_by']} '{fact['used_by_name']}' after it")
        rows.append([size(fact["size_bytes"]), f"{found.classes.get(fact['tensor'], '')}: {fact['name']}", made + used])
    rest = proof.tensors[_MOST_FACTS:]
    for name in roles.CLASSES:
        members = [fact["size_bytes"] for fact in rest if found.classes.get(fact["tensor"]) == name]
        if members:
            rows.append([size(sum(members)), f"{name}: {len(members)} more", "likewise; --json lists each"])
    return [*rows, [size(proof.bound_bytes), "together", ""]]


def _changes(changes: Changes, before: Side, after: Side) -> list[str]:
    lines = [f"{changes.moved_ops} of {changes.ops} ops moved: the fewest whose moving makes the planned order of the "
             "order as written"]
    if changes.gradients:
        early = changes.gradients - after.gradients_kept
        lines.append(f"updates moved up: {early} of {changes.gradients} gradients die before the backward ends, "
                     f"{changes.gradients - before.gradients_kept} as written")
    if changes.reused_tensors:
        lines.append(f"{changes.reused_tensors} results ({size(changes.reused_bytes)}) are written over an input that dies there, "
                     "and take no memory of their own")
    saved = before.peak_bytes - after.peak_bytes
    lines.append(f"together: {size(saved)} less at the peak" if saved else "the peak stays as it was: see below what holds it")
    return lines


def _throughout(found: GraphExplanation) -> str:
    side = found.after or found.before
    fixed = (roles.PARAMETERS, roles.BUFFERS, roles.OPTIMIZER_STATE, roles.CONSTANTS, roles.INPUTS, roles.BATCH)
    shares = [share for share in side.classes if share.name in fixed]
    total = sum(share.size_bytes for share in shares)
    text = (f"{size(total)}, {_percent(total / max(side.peak_bytes, 1))} of the peak, comes from outside and lives "
            f"throughout: {', '.join(share.name for share in shares) or NOTHING}")
    results = sum(share.size_bytes for share in side.classes if share.name == roles.OUTPUTS)
    return text + (f"; results of {size(results)} live from where they are made to the end" if results else "")


def _limit(limit: Limit) -> str:
    reasons = [part for part in limit.reason.split(" and ")]
    what = _REASONS[reasons[0]] if len(reasons) == 1 else f"are tied by one of these ({limit.reason})"
    kinds = ", ".join(limit.kinds[:_MOST_KINDS]) + (", ..." if len(limit.kinds) > _MOST_KINDS else "")
    text = f"{limit.ops} ops {what} ({kinds}). "
    if limit.costs_bytes > 0 and limit.least_bytes is not None:
        return text + (f"This costs {size(limit.costs_bytes)}: without it an order of {size(limit.least_bytes)} exists, and "
                       "this is why that better order was not taken")
    if limit.least_bytes is None:
        return text + "This costs nothing: without it no order needs less either"
    return text + "No better order was found without it"


def _print_binding(binding: Binding, found: GraphExplanation) -> None:
    _head("Weights-bound" if binding.is_weights_bound else "Activations-bound")
    peak = max(binding.scaled_bytes + binding.fixed_bytes, 1)
    saved = {share.name: share.size_bytes for share in found.before.classes}
    grows = f"{_percent(binding.scaled_bytes / peak)} of the peak before planning grows with the batch, of {binding.batch} now"
    turn = binding.turn_batch
    if binding.is_weights_bound:
        _say(f"{grows}; the rest is there at any batch: parameters, their gradients, optimizer state. "
             + ("It stays so at any batch." if turn is None else f"From batch {turn} on half or more would grow."))
        _say("Such a step gains from order: a gradient need not wait for the end of the backward, as its update may run as "
             f"soon as it is made. {size(saved.get(roles.GRADIENTS, 0))} of gradients wait at the peak before planning.")
    else:
        _say(f"{grows}. " + (f"Below batch {turn} less than half would." if turn is not None and turn > 1 else
                             "It is more than half at any batch."))
        _say("Such a step gains little from order: what the forward saves has to live until the backward needs it, in every "
             f"order; {size(saved.get(roles.SAVED, 0))} of it is there at the peak before planning. Only saving less helps: "
             "ops that run again, a smaller batch.")
    print()
    rows = []
    for each in binding.sizes:
        after = [size(each.after_bytes), _less(each.after_bytes, each.before_bytes)] if each.after_bytes is not None else []
        rows.append(["", str(each.batch), size(each.before_bytes), *after,
                     _percent(each.scaled_bytes / max(each.before_bytes, 1)), "this run" if each.batch == binding.batch else
                     "reckoned, in the same order"])
    print_table(["", ">batch", ">before", *([">after", ">saved"] if found.after else []), ">grows", ""], rows)


def _help(help_: Help, now: int) -> str:
    time = f", in {help_.time_ratio:.2f} of the time" if help_.time_ratio is not None else ""
    return f"{help_.name}: {size(help_.peak_bytes)}, {_less(help_.peak_bytes, now)}{time} ({help_.how})"


def _less(new: int, old: int) -> str:
    return "as much" if new == old else f"{_percent(1 - new / max(old, 1))} less"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _head(text: str, first: bool = False) -> None:
    print("" if first else "\n", end="")
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(typer.style(printable(text), bold=True) if bold else printable(text))


def _say(text: str) -> None:
    print(textwrap.fill(printable(text), _WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False))


def _item(text: str) -> None:
    print(textwrap.fill(printable(text), _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False))
