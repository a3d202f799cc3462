# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of why a run of a graph needs what it needs. Needs no torch."""

from stowage import roles
from stowage.explaining import limits
from stowage.explaining.graph import GraphExplanation
from stowage.explaining.limits import Limit, Proof
from stowage.explaining.prose import Writer, counted, less, percent
from stowage.explaining.scaling import Binding
from stowage.store import Row
from stowage.text import NOTHING, size

_MOST_FACTS, _MOST_KINDS = 6, 3
_REASONS = {
    limits.RANDOM: "draw random numbers in the order as written, so that a seed gives the same ones",
    limits.EFFECT: "have effects (a parameter is written, an error may be raised) and keep their order",
    limits.BARRIER: "may not cross an op that stowage does not know",
}


def tell_proof(found: GraphExplanation, run: Row, out: Writer) -> None:
    if found.proof is None:
        out.head("Why no order needs less")
        out.say(f"Not shown: {found.unproven}.")
        return
    proof = found.proof
    out.head(f"Why no order needs less than {size(proof.bound_bytes)}")
    if proof.op < 0:
        out.say("That much lives throughout: inputs and constants.")
        return
    out.say(f"While op {proof.op} '{proof.op_name}' runs, wherever it stands in the order, all of these live: an op that "
            "must run before it makes them, or it does so itself, and it needs them, or an op that must run after it.")
    out.table([">size", "class", "tensor", "made before by", "needed after by"], _facts(proof))
    if run["bound_bytes"] is not None and run["bound_bytes"] > proof.bound_bytes:
        out.say(f"Nor than {size(run['bound_bytes'])}: the search has ruled out all orders below that.")


def _facts(proof: Proof) -> list[list[str]]:
    shown, rest = proof.tensors[:_MOST_FACTS], proof.tensors[_MOST_FACTS:]
    rows = [[size(proof.throughout_bytes), "inputs, constants", "all", "", "they live throughout"]]
    for fact in shown:
        made_here = fact["made_by"] == proof.op
        made = "itself" if made_here else f"{fact['made_by']} {fact['made_by_name']}"
        by = "itself" if fact["used_by"] == proof.op else f"{fact['used_by']} {fact.get('used_by_name', '')}"
        needed = "" if made_here else "the end: a result" if fact["used_by"] < 0 else by
        rows.append([size(fact["size_bytes"]), fact["class"], fact["name"] or f"tensor {fact['tensor']}", made, needed])
    for name in roles.CLASSES:
        members = [fact["size_bytes"] for fact in rest if fact["class"] == name]
        if members:
            more = "more" if any(fact["class"] == name for fact in shown) else "of them"
            rows.append([size(sum(members)), name, f"{len(members)} {more}", "likewise", "likewise"])
    return [*rows, [size(proof.bound_bytes), "together", "", "", ""]]


def limits_of(found: GraphExplanation) -> list[str]:
    """What keeps the order, a sentence each; that of all reasons together only where none alone costs what they do."""
    told = [limit for limit in found.limits if " and " not in limit.reason or limit.costs_bytes > 0]
    return [_throughout(found), *map(_limit, told)]


def _throughout(found: GraphExplanation) -> str:
    side = found.after or found.before
    fixed = (roles.PARAMETERS, roles.BUFFERS, roles.OPTIMIZER_STATE, roles.CONSTANTS, roles.INPUTS, roles.BATCH)
    shares = [share for share in side.classes if share.name in fixed]
    total = sum(share.size_bytes for share in shares)
    text = (f"{size(total)}, {percent(total / max(side.peak_bytes, 1))} of the peak, comes from outside and lives "
            f"throughout: {', '.join(share.name for share in shares) or NOTHING}")
    results = sum(share.size_bytes for share in side.classes if share.name == roles.OUTPUTS)
    if results <= 0.001 * total:
        return text
    return f"{text}; results of {size(results)} live from where they are made to the end"


def _limit(limit: Limit) -> str:
    what = _REASONS.get(limit.reason, "are held by one of these or another")
    kinds = ", ".join(limit.kinds[:_MOST_KINDS]) + (", ..." if len(limit.kinds) > _MOST_KINDS else "")
    text = f"{counted(limit.ops, 'op')} {what} ({kinds}). "
    if limit.least_bytes is not None and 0 < limit.costs_bytes <= 0.001 * limit.least_bytes:
        return text + f"This costs next to nothing: {size(limit.costs_bytes)}"
    if limit.costs_bytes > 0 and limit.least_bytes is not None:
        return text + (f"This costs {size(limit.costs_bytes)}: without it an order of {size(limit.least_bytes)} exists, and "
                       "this is why that better order was not taken")
    if limit.least_bytes is None:
        return text + "This costs nothing: without it no order needs less either"
    return text + "No better order was found without it"


def tell_binding(binding: Binding, found: GraphExplanation, out: Writer) -> None:
    out.head("Weights-bound" if binding.is_weights_bound else "Activations-bound")
    peak = max(binding.scaled_bytes + binding.fixed_bytes, 1)
    lives = {share.name: share.size_bytes for share in found.before.classes}
    turn = binding.turn_batch
    out.say(f"{percent(binding.scaled_bytes / peak)} of the peak before planning grows with the batch (what the forward "
            f"saves, temporaries, the batch itself). {percent(binding.fixed_bytes / peak)} is the same at any batch "
            "(parameters, their gradients, optimizer state).")
    if binding.is_weights_bound:
        out.say("Order helps such a step: a gradient need not wait for the end of the backward, as its update may run as "
             f"soon as it is made. At the peak before planning {size(lives.get(roles.GRADIENTS, 0))} of gradients wait. "
             + ("No batch changes that." if turn is None else f"From batch {turn} on, half or more of the peak grows."))
    else:
        out.say("Order helps such a step little: what the forward saves must live until the backward needs it, in every order. "
             f"At the peak before planning that is {size(lives.get(roles.SAVED, 0))}. "
             + (f"Below batch {turn}, less than half of the peak grows." if turn is not None and turn > 1 else
                "No batch is small enough to change that."))
    rows = []
    for each in binding.sizes:
        after = [size(each.after_bytes), less(each.after_bytes, each.before_bytes)] if each.after_bytes is not None else []
        rows.append([str(each.batch), size(each.before_bytes), *after,
                     percent(each.scaled_bytes / max(each.before_bytes, 1)), "this run" if each.batch == binding.batch else
                     "predicted"])
    out.table([">batch", ">before", *([">after", ">saved"] if found.after else []), ">grows", ""], rows)
