# SPDX-License-Identifier: Apache-2.0
"""The report of a whole check: JSON for programs, text for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu.outcome import DRY, STATES, Outcome


@dataclass
class PartReport:
    name: str
    limit_s: float
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass
class Report:
    command: str
    limit_s: float
    seconds: float = 0.0
    parts: list[PartReport] = field(default_factory=list)

    def outcomes(self) -> list[Outcome]:
        return [outcome for part in self.parts for outcome in part.outcomes]

    def is_dry(self) -> bool:
        return any(outcome.dry for outcome in self.outcomes())

    def counts(self) -> dict[str, int]:
        found = Counter(outcome.state for outcome in self.outcomes())
        return {state: found[state] for state in STATES}

    def succeeded(self) -> bool:
        """Something was looked at, and nothing failed."""
        return bool(self.outcomes()) and self.counts()["failed"] == 0

    def facts(self) -> dict[str, Any]:
        """Device, driver and versions, as the first part found them; empty without it."""
        return next((outcome.values for outcome in self.outcomes() if "capability" in outcome.values), {})

    def to_json(self) -> dict[str, Any]:
        return {"dry": self.is_dry(), "command": self.command, "limit_s": self.limit_s,
                "seconds": round(self.seconds, 1), "succeeded": self.succeeded(), "counts": self.counts(),
                "facts": self.facts(), "parts": [asdict(part) for part in self.parts]}

    def to_text(self) -> str:
        lines = [f"{DRY}: measured without a GPU, values not compared" if self.is_dry() else "on a GPU",
                 f"{self.command}: {self.seconds:.0f} s of {self.limit_s:.0f} s"]
        for part in self.parts:
            lines += ["", f"{part.name} ({part.seconds:.0f} s of {part.limit_s:.0f} s)"]
            lines += [f"  {line(outcome)}" for outcome in part.outcomes]
        return "\n".join([*lines, "", self.summary(), ""])

    def summary(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.counts().items() if state != "figure")
        return f"{counts}, {self.counts()['figure']} figures"


def line(outcome: Outcome) -> str:
    """One line; what no GPU gave says so."""
    detail = outcome.detail
    if outcome.dry and not detail.startswith(DRY):
        detail = f"{DRY}: {detail}"
    return f"{outcome.state:7}  {outcome.name}: {detail}" if detail else f"{outcome.state:7}  {outcome.name}"
