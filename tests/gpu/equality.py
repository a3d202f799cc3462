# SPDX-License-Identifier: Apache-2.0
"""Whether a planned training is the unplanned one and eager's, to the last bit: losses, parameters, buffers, state."""

from __future__ import annotations

import sys

import stowage
import torch

from gpu.outcome import Failure, Part, Skip
from gpu.training import DEVICE, STEPS, Case, Tensors, Training, be_deterministic, difference, planned_phase

#: Values of the options `poison` and `reuse`.
ALL_SETTINGS = (("1", "1"), ("0", "1"), ("1", "0"), ("0", "0"))
TWO_SETTINGS = (("1", "1"), ("0", "0"))
#: The most telling first: time may end before the list does. Seconds that one training of each takes at most.
CASES = (
    (Case("resnet18", 8, "sgd"), ALL_SETTINGS, 3),
    (Case("transformer", 8, "adam"), ALL_SETTINGS, 3),
    (Case("gpt2", 2, "adam"), TWO_SETTINGS, 6),
    (Case("resnet50", 8, "sgd"), TWO_SETTINGS, 6),
    (Case("resnet18", 8, "adam"), ALL_SETTINGS, 3),
    (Case("transformer", 8, "sgd"), ALL_SETTINGS, 3),
    (Case("gpt2", 2, "sgd"), TWO_SETTINGS, 6),
    (Case("resnet50", 8, "adam"), TWO_SETTINGS, 6),
)


def check(part: Part, case: Case, settings: tuple[tuple[str, str], ...], needs_s: float) -> None:
    """One capture serves all settings: `enable` makes stowage meet its graph again."""
    kept: dict = {}

    def unplanned() -> str:
        stowage.disable()
        kept["training"] = training = Training(case)
        eager = training.run(training.eager_step)
        kept["step"] = training.capture()
        kept["expected"] = training.run(kept["step"])
        part.same("eager and captured", lambda: difference(kept["expected"], eager))
        return f"{STEPS} steps, {len(eager)} tensors equal"

    # A capture that is not eager's does not keep planned runs from being compared with it.
    part.attempt(f"{case}: captured as eager", 2 * needs_s, unplanned)
    for poison, reuse in settings:
        name = f"{case}: planned as captured, poison {poison}, reuse {reuse}"
        part.attempt(name, needs_s, lambda: planned(part, kept, poison, reuse))
    kept.clear()
    torch.cuda.empty_cache()


def planned(part: Part, kept: dict, poison: str, reuse: str) -> str:
    if "expected" not in kept:
        raise Skip("there is no captured training to compare with")
    stowage.set_option("poison", poison)
    stowage.set_option("reuse", reuse)
    stowage.enable()
    training: Training = kept["training"]
    expected: Tensors = kept["expected"]
    found = training.run(kept["step"])
    phase = planned_phase()
    reused = phase["last"]["reused"]["allocations"]
    if (reused > 0) != (reuse == "1"):
        raise Failure(f"option reuse is {reuse}, and {reused} allocations were reused")
    part.same("planned and captured", lambda: difference(found, expected))
    hits = phase["last"]["hits"]["allocations"]
    return f"{phase['runs']} planned steps equal; {hits} allocations placed, {reused} of them reused"


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    be_deterministic()
    for case, settings, needs_s in CASES:
        check(part, case, settings, needs_s)


if __name__ == "__main__":
    main()
