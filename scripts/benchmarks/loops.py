# SPDX-License-Identifier: Apache-2.0
"""Measures the memory of training loops as people write them: eager and scripted, planned against unplanned.

An eager loop is planned by the one line `with stowage.step():`, a scripted one by nothing but `stowage.enable()`. Every
figure comes from a process of its own, and is the peak of the steady state. What a planned loop reserves is held
against the most that the eager loop has live at once; on CUDA with the better of PyTorch's two allocator settings. On the CPU the meter counts live bytes, the arena as one block,
and planned loops must make the very losses and weights of the unplanned. On CUDA it is PyTorch's allocator that says
what it reserves; without a GPU that is dry CUDA, which computes nothing.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from memory import ask, chosen, launcher
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
#: Models with their batch, by device.
SIZES = {
    "cpu": {"resnet18": 8, "transformer": 4, "gpt2_short": 1},
    "cuda": {"resnet18": 128, "transformer": 64, "gpt2": 8},
}
TINY = {"tiny_cnn": 4, "tiny_gpt": 4}
OPTIMIZERS = ("sgd", "adamw")
LOOPS = ("keeping", "dropping", "zeroing_last")
#: PyTorch's allocator settings by name.
SEGMENTS = {"cpu": {"": ""}, "cuda": {"native": "", "expandable": "expandable_segments:True"}}
MODES = ("eager", "eager,planned", "scripted", "scripted,planned")
#: How much more than the eager loop's live peak a planned loop may reserve.
MARGIN = 0.01


@dataclass(frozen=True)
class Case:
    device: str
    model: str
    batch: int
    optimizer: str
    loop: str
    segments: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.model, str(self.batch), self.optimizer, self.loop, self.segments)))


@dataclass
class Row:
    case: Case
    answers: dict[str, dict] = field(default_factory=dict)  # by mode

    def ratio(self, planned: str) -> float | None:
        """What the planned loop reserves, of the eager loop's live peak."""
        held = self.answers.get(planned, {}).get("reserved_bytes")
        live = self.answers.get("eager", {}).get("allocated_bytes")
        return held / live if held and live else None

    def is_same(self, planned: str) -> bool | None:
        """Whether losses, weights and the optimizer's state equal those of the loop unplanned; None where no figure is
        computed."""
        with_plan, without = (self.answers.get(mode, {}) for mode in (planned, planned.removesuffix(",planned")))
        if self.case.device != "cpu" or not (with_plan.get("losses") and without.get("losses")):
            return None
        return all(with_plan[what] == without[what] for what in ("losses", "state"))

    def is_within(self, planned: str) -> bool:
        ratio = self.ratio(planned)
        return ratio is not None and ratio <= 1 + MARGIN

    def faults(self, twins: Sequence["Row"] = ()) -> list[str]:
        """What is wrong, if `twins` are the same loop with other allocator settings: one of all must be within the
        margin, since the user chooses."""
        found = [f"{mode}: {answer['failed']}" for mode, answer in self.answers.items() if "failed" in answer]
        for mode in MODES:
            if not mode.endswith("planned") or self.ratio(mode) is None:
                continue
            if not any(row.is_within(mode) for row in (self, *twins)):
                found.append(f"{mode}: {self.ratio(mode) - 1:+.1%}; {explain(self.answers[mode]['followed'])}")
            if self.is_same(mode) is False:
                found.append(f"{mode}: not the losses or weights of the unplanned loop")
        return found

    def fields(self) -> dict:
        modes = [mode for mode in self.answers if mode.endswith("planned")]
        return {**vars(self.case), "modes": self.answers, "ratios": {mode: self.ratio(mode) for mode in modes},
                "identical": {mode: self.is_same(mode) for mode in modes}, "faults": self.faults()}


def explain(followed: dict) -> str:
    """Where the bytes of a planned step's last run came from."""
    if "arena_bytes" not in followed:
        return "; ".join(["no step was planned", *followed["notes"]])
    missed = ", ".join(f"{mib(size)} MiB {why}" for why, size in followed["missed_bytes"].items()) or "nothing"
    arena, bound = mib(followed["arena_bytes"]), mib(followed["arena_bound_bytes"])
    return f"arena {arena} MiB, its bound {bound} MiB, missed: {missed}"


def measure(case: Case, mode: str, start: list[str]) -> dict:
    """The worker's answer, or why there is none."""
    arguments = [case.device, case.model, str(case.batch), case.optimizer, case.loop, mode]
    return ask("loop_worker.py", arguments, start, SEGMENTS[case.device][case.segments])


def run_all(rows: list[Row], modes: list[str], at_once: int, notes: Console) -> None:
    starts = {device: launcher() if device == "cuda" else [] for device in {row.case.device for row in rows}}
    with ThreadPoolExecutor(at_once) as pool:
        pending = {pool.submit(measure, row.case, mode, starts[row.case.device]): (row, mode)
                   for row in rows for mode in modes}
        for done, future in enumerate(as_completed(pending), start=1):
            row, mode = pending[future]
            row.answers[mode] = future.result()
            if notes.is_terminal:
                notes.print(f"{done} of {len(pending)}: {row.case}, {mode}", end="\r")


def show(rows: list[Row], device: str, console: Console) -> None:
    rows = [row for row in rows if row.case.device == device]
    if not rows:
        return
    names = {answer.get("device") for row in rows for answer in row.answers.values()} - {None}
    label = "dry CUDA: measured without a GPU; " if any(name.endswith("(dry)") for name in names) else ""
    console.print(f"\n{label}{', '.join(sorted(names))}; MiB, peaks of the steady state\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in ("eager\nlive", "\nreserved", "planned\nreserved", "of eager's\nlive", "the same\nresults",
                  "scripted\nreserved", "planned\nreserved", "of eager's\nlive", "the same\nresults"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        held = {mode: mib(answer.get("reserved_bytes")) for mode, answer in row.answers.items()}
        cells = [mib(row.answers.get("eager", {}).get("allocated_bytes")), held.get("eager", "-")]
        for mode in ("eager,planned", "scripted,planned"):
            ratio, same = row.ratio(mode), row.is_same(mode)
            if mode == "scripted,planned":
                cells.append(held.get("scripted", "-"))
            cells += [held.get(mode, "-"), "-" if ratio is None else f"{ratio - 1:+.2%}",
                      "-" if same is None else "yes" if same else "NO"]
        table.add_row(str(row.case), *cells)
    console.print(table)


def mib(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / MIB:,.1f}"


def loops(
    devices: Annotated[str, typer.Option(help="cpu, cuda or both.")] = "cpu,cuda",
    models: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    optimizers: Annotated[str, typer.Option(help="sgd (with momentum 0.9), adamw or both.")] = ",".join(OPTIMIZERS),
    kinds: Annotated[str, typer.Option("--loops", help="Only these, separated by commas.")] = ",".join(LOOPS),
    only_eager: Annotated[bool, typer.Option("--only-eager", help="No scripted loops.")] = False,
    at_once: Annotated[int, typer.Option(min=1, help="Processes; one takes up to 4 GiB.")] = 2,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "out/bench-loops.json",
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Measures what training loops hold, unplanned and planned; fails where a planned one holds too much."""
    rows = []
    for device in chosen(devices, list(SIZES), "device"):
        sizes = TINY if tiny else SIZES[device]
        named = models.split(",") if models else list(sizes)
        rows += [Row(Case(device, model, sizes[model], optimizer, loop, segments))
                 for model in named if model in sizes for optimizer in chosen(optimizers, list(OPTIMIZERS), "optimizer")
                 for loop in chosen(kinds, list(LOOPS), "loop") for segments in SEGMENTS[device]]
    if not rows:
        raise typer.BadParameter(f"no model '{models}' on {devices}")
    run_all(rows, [mode for mode in MODES if not only_eager or mode.startswith("eager")], at_once,
            Console(stderr=True, highlight=False))
    for device in SIZES:
        show(rows, device, Console(width=None if sys.stdout.isatty() else 160, highlight=False))
    twins = {row.case: [other for other in rows if replace(other.case, segments="") == replace(row.case, segments="")]
             for row in rows}
    faults = [f"{row.case}, {fault}" for row in rows for fault in row.faults(twins[row.case])]
    print(f"\n{len(rows)} rows, {len(faults)} faults", *faults, sep="\n")
    results = {"torch": torch.__version__, "command": shlex.join(["scripts/bench", "loops", *sys.argv[1:]]),
               "margin": MARGIN, "rows": [row.fields() for row in rows]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {out}", file=sys.stderr)
    if faults:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(loops)
