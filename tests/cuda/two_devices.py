# SPDX-License-Identifier: Apache-2.0
"""A step on each of two devices, in turns; prints which runs were planned, and what the witness saw."""

import json

import stowage
import torch
from cuda.stepping import Step

from drycuda import control

if __name__ == "__main__":
    stowage.enable()
    stowage.set_option("poison", "1")
    stowage.set_option("reuse", "0")
    steps = [Step(device=f"cuda:{device}").until_planned() for device in range(2)]
    planned = []
    with control.held_events(), control.witness():
        for current in (0, 1, 0):  # whichever device is current
            with torch.cuda.device(current):
                planned += [step.is_planned() for step in steps]
    print(json.dumps({"violations": control.violations(), "planned": planned, "notes": stowage.status()["notes"]}))
