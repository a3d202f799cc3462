# SPDX-License-Identifier: Apache-2.0
"""What a check found, and how a part of the check, in a process of its own, says so: one JSON object a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

#: How the name of a device ends whose kernels do nothing.
DRY_SUFFIX = "(dry)"
DRY = "dry CUDA"
STATES = ("passed", "failed", "skipped", "figure")

#: A body's detail, or its detail and its figures.
Found = str | tuple[str, dict[str, Any]]


class Skip(Exception):
    """A check cannot say anything here; the text is why."""


class Failure(Exception):
    """A check found what must not be; the text is what."""


@dataclass
class Outcome:
    name: str
    state: str
    detail: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    dry: bool = False

    def to_line(self) -> str:
        return json.dumps(asdict(self))


def read_line(line: str) -> Outcome | None:
    """The outcome in a line of a part's output; None of anything else that a library may print."""
    try:
        fields = json.loads(line)
        outcome = Outcome(**fields)
    except (TypeError, ValueError):
        return None
    return outcome if outcome.state in STATES else None


def is_dry(device: str) -> bool:
    return device.endswith(DRY_SUFFIX)


class Part:
    """Runs the checks of one part until `deadline`, on `time.monotonic`, and prints each outcome as it comes."""

    def __init__(self, deadline: float, device: str, say: Callable[[str], None] = print) -> None:
        self._deadline = deadline
        self._say = say
        self.dry = is_dry(device)

    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def attempt(self, name: str, needs_s: float, body: Callable[[], Found], state: str = "passed") -> bool:
        """Runs `body` if `needs_s` seconds are left; a raised `Skip` skips the check, any other exception fails it.

        Returns whether the check ended in `state`; give 'figure' for what is measured and cannot fail.
        """
        left = self.seconds_left()
        if left < needs_s:
            why = f"no time: needs about {needs_s:.0f} s, {max(left, 0):.0f} s left"
            return self._end(Outcome(name, "skipped", why))
        start = time.monotonic()
        try:
            found = body()
        except Skip as why:
            outcome = Outcome(name, "skipped", str(why))
        except Failure as what:
            outcome = Outcome(name, "failed", str(what))
        except Exception as error:
            outcome = Outcome(name, "failed", f"{type(error).__name__}: {first_line(str(error))}")
        else:
            detail, values = found if isinstance(found, tuple) else (found, {})
            outcome = Outcome(name, state, detail, values)
        outcome.seconds = time.monotonic() - start
        return self._end(outcome)

    def same(self, what: str, difference: Callable[[], str | None]) -> None:
        """Raises `Failure` with the difference that there is; on dry CUDA there are no values to compare."""
        if self.dry:
            raise Skip(f"{DRY}: kernels do nothing, {what} not compared")
        found = difference()
        if found is not None:
            raise Failure(found)

    def _end(self, outcome: Outcome) -> bool:
        outcome.dry = self.dry
        self._say(outcome.to_line())
        sys.stdout.flush()
        return outcome.state in ("passed", "figure")


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
