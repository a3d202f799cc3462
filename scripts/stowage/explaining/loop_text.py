# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of a step, in words. Needs no torch."""

from dataclasses import asdict
from typing import Any

from stowage import peaks
from stowage.explaining.moves import FOREACH_OFF, UPDATES_IN_BACKWARD, Explanation, Move
from stowage.explaining.prose import Writer
from stowage.peaks import Class, Peak
from stowage.text import size

#: The section that says what lives at the peak.
AT_PEAK = "There live:"
_CLASSES = {
    peaks.GRADIENTS: "gradients, from the backward until they are cleared",
    peaks.TEMPORARIES: "temporaries of the optimizer",
    peaks.STATE: "optimizer state, made in this step",
    peaks.LEFT: "what the step before left, as gradients before zero_grad()",
    peaks.SAVED: "saved by the forward for the backward",
    peaks.KEPT: "made outside the backward, kept by the program",
    peaks.FORWARD_TEMPORARIES: "temporaries outside the backward",
    peaks.BACKWARD_TEMPORARIES: "temporaries of the backward",
}
_PLACES = {
    peaks.FORWARD: "in the forward",
    peaks.END_OF_FORWARD: "at the end of the forward",
    peaks.BACKWARD: "in the backward",
    peaks.AFTER_BACKWARD: "after the backward",
    peaks.OPTIMIZER: "in the optimizer's step",
    peaks.UPDATE_IN_BACKWARD: "in an update within the backward",
}
_WHAT_IT_DOES = {
    FOREACH_OFF: "the optimizer makes temporaries of one parameter after another",
    UPDATES_IN_BACKWARD: "each gradient dies with its own update (Tensor.register_post_accumulate_grad_hook)",
}


def to_json(found: Explanation) -> dict[str, Any]:
    now = found.peak
    return {**asdict(found), "moves": [
        {**asdict(move), "helps": _helps(move, now),
         "saved_bytes": now.live_bytes - move.peak.live_bytes if move.peak else None} for move in found.moves]}


def tell_loop(found: Explanation, out: Writer) -> None:
    op = found.peak.op
    out.say(f"The step's peak is {_where(found.peak)}: {size(found.peak.live_bytes)} at op {op.op} {op.kind} '{op.name}'.")
    out.say("That is what the step allocates; what was there before (parameters, optimizer state, the batch) comes on top.")
    out.head(AT_PEAK)
    out.table([">size", ">tensors", "what"],
              [(size(each.size_bytes), each.tensors, _what(each, found.gradient_bytes)) for each in found.classes])
    out.head("What would move it:")
    for move in found.moves:
        out.item(f"{move.name}: {_outcome(move, found.peak)}")


def _helps(move: Move, now: Peak) -> bool:
    """By a tenth of a percent or more."""
    return move.peak is not None and move.peak.live_bytes <= 0.999 * now.live_bytes


def _where(peak: Peak) -> str:
    of = peak.optimizer or (peak.op.scope if peak.place == peaks.BACKWARD else "")
    return _PLACES[peak.place] + (f" ({of})" if of else "")


def _what(each: Class, gradient_bytes: int) -> str:
    made_by = f"{_CLASSES[each.name]}; by {', '.join(each.made_by[:3])}{', ...' if len(each.made_by) > 3 else ''}"
    if each.name != peaks.TEMPORARIES or gradient_bytes == 0:
        return made_by
    times = each.size_bytes / gradient_bytes
    if times < 0.95:
        return f"{made_by}: {100 * times:.1f} % of all gradients"
    large = "as large" if times < 1.05 else f"{times:.1f} times as large"
    return f"{made_by}: {large} as all gradients, so as all parameters (param-sized intermediate)"


def _outcome(move: Move, now: Peak) -> str:
    if move.peak is None:
        return f"cannot help, {move.why_not}."
    new = move.peak.live_bytes
    beside = f", beside temporaries of {size(move.temporaries_bytes)}" if move.peak.optimizer else ""
    if new > now.live_bytes:
        return f"would not help, the peak would be {size(new)}, {_where(move.peak)}{beside}."
    if not _helps(move, now):
        return f"would not help, the peak stays {_where(now)}."
    then = "still" if move.peak.place == now.place else "then"
    text = (f"{size(new)}, {100 * (1 - new / now.live_bytes):.1f} % less, {then} {_where(move.peak)}{beside}. "
            f"So {_WHAT_IT_DOES[move.name]}.")
    if move.is_estimate:
        text += " It may be more: what that form of this optimizer holds at once is not known."
    if move.uses_all:
        text += f" Not with {move.uses_all} between backward and update, which takes all gradients."
    return text
