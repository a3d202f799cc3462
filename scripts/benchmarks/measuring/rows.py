# SPDX-License-Identifier: Apache-2.0
"""One row of the memory benchmark for each model, batch and optimizer, and what the rows say together."""

from dataclasses import dataclass, field
from statistics import mean

from rich.console import Console
from rich.table import Table

MIB = 1 << 20
#: How the name of a device ends whose kernels do nothing.
DRY = "(dry)"
#: Fields of a row by mode, each with the name that the worker gives it.
FIELDS = {
    "eager": {"eager_allocated_bytes": "allocated_bytes", "eager_reserved_bytes": "reserved_bytes"},
    "expandable": {"eager_expandable_allocated_bytes": "allocated_bytes",
                   "eager_expandable_reserved_bytes": "reserved_bytes"},
    "captured": {"captured_allocated_bytes": "allocated_bytes", "captured_reserved_bytes": "reserved_bytes",
                 "capture_seconds": "capture_seconds"},
    "captured_expandable": {"captured_expandable_reserved_bytes": "reserved_bytes"},
    "planned": {"planned_allocated_bytes": "allocated_bytes", "planned_reserved_bytes": "reserved_bytes",
                "planned_peak_bytes": "peak_bytes", "bound_bytes": "bound_bytes", "arena_bytes": "arena_bytes",
                "arena_bound_bytes": "arena_bound_bytes", "plan_seconds": "plan_seconds",
                "order_status": "order_status", "layout_status": "layout_status"},
    "planned_native": {"planned_native_reserved_bytes": "reserved_bytes"},
}


@dataclass
class Row:
    model: str
    batch: int
    optimizer: str
    in_table: bool
    device: str = ""
    values: dict[str, int | float | str] = field(default_factory=dict)
    #: Why a mode has no figures. Running out of memory is a result, anything else a failure.
    reasons: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def record(self, mode: str, answer: dict) -> None:
        """Takes the worker's answer for a mode."""
        self.device = answer.get("device", self.device)
        if "reserved_bytes" in answer:
            self.values |= {name: answer[given] for name, given in FIELDS[mode].items()}
            return
        self.failed |= "failed" in answer
        self.reasons[mode] = answer.get("out_of_memory") or answer["failed"]

    def take_over(self, fields: dict) -> None:
        """Takes what an earlier run measured; what failed is measured again."""
        for names in FIELDS.values():
            self.values |= {name: fields[name] for name in names if fields.get(name) is not None}
        reasons = fields.get("reasons", {}).items()
        self.reasons |= {mode: why for mode, why in reasons if why.startswith("out of memory")}

    def done_modes(self) -> set[str]:
        return {mode for mode, names in FIELDS.items() if mode in self.reasons or names.keys() <= self.values.keys()}

    def fields(self) -> dict:
        every = {name: self.values.get(name) for names in FIELDS.values() for name in names}
        return {"model": self.model, "batch": self.batch, "optimizer": self.optimizer, "in_table": self.in_table,
                **every, "reasons": self.reasons}

    def saved(self, *unplanned: str) -> float | None:
        """The share of the reserved bytes that the plan saves of the least of `unplanned`; None without figures.

        An unplanned mode that ran out of memory holds more than the others.
        """
        held = [self.values[f"{mode}_reserved_bytes"] for mode in unplanned if f"{mode}_reserved_bytes" in self.values]
        if not held or "planned_reserved_bytes" not in self.values:
            return None
        return 1 - self.values["planned_reserved_bytes"] / min(held)

    def saved_of_native(self) -> float | None:
        return self.saved("eager")

    def saved_of_best(self) -> float | None:
        return self.saved("eager", "eager_expandable")

    def saved_of_captured(self) -> float | None:
        """What is the plan's own doing: a captured step needs less than eager already where that updates all weights at
        once (foreach) and runs backward on a thread of its own, with a second cuBLAS workspace."""
        return self.saved("captured", "captured_expandable")

    def arena_waste(self) -> float | None:
        """How much larger the arena is than the bytes that live in it at once."""
        bound = self.values.get("arena_bound_bytes")
        return self.values["arena_bytes"] / bound - 1 if bound else None


def means(rows: list[Row]) -> dict:
    """Mean savings over the rows of the table and over all, of those that have figures."""
    return {"table": _means([row for row in rows if row.in_table]), "all": _means(rows)}


def _means(rows: list[Row]) -> dict:
    native, best, captured, waste = (
        [value for value in map(figure, rows) if value is not None]
        for figure in (Row.saved_of_native, Row.saved_of_best, Row.saved_of_captured, Row.arena_waste)
    )
    measured = [row for row in rows if row.saved_of_best() is not None]
    worst = min(measured, key=Row.saved_of_best, default=None)
    return {
        "rows": len(rows),
        "rows_measured": len(measured),
        "saved_of_native": mean(native) if native else None,
        "saved_of_best": mean(best) if best else None,
        "saved_of_captured": mean(captured) if captured else None,
        "worst_row": [worst.model, worst.batch, worst.optimizer, worst.saved_of_best()] if worst else None,
        "arena_waste": mean(waste) if waste else None,
        "arena_waste_max": max(waste, default=None),
    }


def show(rows: list[Row], console: Console) -> None:
    """Prints a line for each row, and what they say together."""
    table = Table(box=None, pad_edge=False)
    table.add_column("MiB", no_wrap=True)
    for title in ("allocated\neager", "\nplanned", "\nbound", "reserved\neager", "\nexpandable", "\ncaptured",
                  "\nplanned", "\narena", "saved of\nnative", "\nbest", "\ncaptured", "planned\nin"):
        table.add_column(title, justify="right", no_wrap=True)
    names = ("eager_allocated_bytes", "planned_allocated_bytes", "bound_bytes", "eager_reserved_bytes",
             "eager_expandable_reserved_bytes", "captured_reserved_bytes", "planned_reserved_bytes", "arena_bytes")
    for row in rows:
        seconds = row.values.get("plan_seconds")
        table.add_row(
            f"{row.model} {row.batch} {row.optimizer}", *(_mib(row.values.get(name)) for name in names),
            *map(_percent, (row.saved_of_native(), row.saved_of_best(), row.saved_of_captured())),
            "-" if seconds is None else f"{seconds:.2f} s",
        )
    device = next((row.device for row in rows if row.device), "no device")
    label = "dry CUDA: measured without a GPU; " if device.endswith(DRY) else ""
    console.print(f"{label}{device}; peaks of the steady state; cuDNN on, its benchmark off\n", soft_wrap=True)
    console.print(table)
    for name, found in means(rows).items():
        if found["rows"]:
            console.print(_sentence("the table's rows" if name == "table" else "all rows", found), soft_wrap=True)


def _sentence(which: str, found: dict) -> str:
    text = f"\n{which}: {found['rows_measured']} of {found['rows']} measured"
    if found["worst_row"]:
        model, batch, optimizer, saved = found["worst_row"]
        text += (f"; saved of native {_percent(found['saved_of_native'])}, "
                 f"of the better of native and expandable {_percent(found['saved_of_best'])} "
                 f"(least: {model} {batch} {optimizer}, {_percent(saved)}), "
                 f"of the better of captured with and without expandable {_percent(found['saved_of_captured'])}")
    if found["arena_waste"] is not None:
        text += f"; arena above its bound {found['arena_waste']:.3%}, at most {found['arena_waste_max']:.3%}"
    return text


def _mib(size_bytes: int | float | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / MIB:,.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
