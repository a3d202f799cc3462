# SPDX-License-Identifier: Apache-2.0
"""What the option `verify` found, as text. Needs no torch."""

from __future__ import annotations

from typing import Any


def verdicts(status: dict[str, Any]) -> list[str]:
    """A line for each region with a run that was planned while the option `verify` was on, of the plugin's `status`."""
    return [f"{region['name']}: {_verdict(region)}" for region in status["regions"] if _ran(region)]


def verified_regions(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The regions of which `verdicts` tells, with what the plugin says of them."""
    keys = ("name", "ops", "verified_runs", "differing_runs", "unverified_runs", "why_unverified", "unread_values",
            "first_difference")
    return [{key: region[key] for key in keys} for region in status["regions"] if _ran(region)]


def all_equal(status: dict[str, Any]) -> bool:
    """Whether any planned run was verified, and none differed from the unplanned run."""
    runs = [_runs(region) for region in status["regions"]]
    return any(verified for verified, _, _ in runs) and not any(differing for _, differing, _ in runs)


def why_nothing_ran(status: dict[str, Any]) -> list[str]:
    """Why there is no planned run at all, a line for each reason."""
    reasons = [f"{graph['name']}: left alone: {graph['why']}" for graph in status["left_alone"]]
    for region in status["regions"]:
        for phase in region["phases"]:
            if phase["state"] == "planned":
                reasons.append(f"{region['name']}: planned, but not run since")
            else:
                reasons.append(f"{region['name']}: {phase['state']}: {phase.get('why', 'run more steps')}")
        if not region["phases"]:
            reasons.append(f"{region['name']}: {region['executions']} runs, none that may be planned: stowage is off, "
                           "the option plan is, or autograd records what the graph does")
    return reasons or ["no TorchScript graph met stowage: call stowage.enable() before the first run of a scripted "
                       "module, or train through stowage.capture"]


def _ran(region: dict[str, Any]) -> bool:
    return any(_runs(region))


def _runs(region: dict[str, Any]) -> tuple[int, int, int]:
    """How many were equal, how many differed, and how many could not be compared."""
    return tuple(region.get(f"{kind}_runs", 0) for kind in ("verified", "differing", "unverified"))


def _verdict(region: dict[str, Any]) -> str:
    verified, differing, unverified = _runs(region)
    parts = []
    if differing:
        parts += [region["first_difference"][key] for key in ("text", "cause") if key in region["first_difference"]]
        parts.append(f"{differing} of {verified + differing} planned runs differ")
    elif verified:
        runs = "1 planned run" if verified == 1 else f"{verified} planned runs"
        parts.append(f"{runs} verified, {region['ops']} ops each, all equal")
    if region["unread_values"]:
        parts.append(f"{region['unread_values']} results not compared: no plain tensors on the CPU")
    if unverified:
        parts.append(f"{unverified} runs not verified: {region['why_unverified']}")
    return "; ".join(parts)
