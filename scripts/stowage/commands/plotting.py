# SPDX-License-Identifier: Apache-2.0
"""Plots in characters, without colours: the same on a terminal and in a pipe."""

import shutil
from typing import Any

#: Of a plot, in characters.
WIDTH, HEIGHT = 80, 18
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def unit_of(most_bytes: int) -> tuple[str, int]:
    """The largest unit that sizes up to this one are written in, and its bytes."""
    return next((unit for unit in _UNITS if most_bytes >= unit[1]), _UNITS[-1])


def columns() -> int:
    return min(WIDTH, shutil.get_terminal_size().columns)


def new_plot(title: str) -> Any:
    """plotext with an empty plot."""
    import plotext  # only here: the other commands do without it

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(columns(), HEIGHT)
    plotext.title(title)
    return plotext


def drawn(plot: Any) -> str:
    lines = plot.uncolorize(plot.build()).splitlines()
    return "\n".join(line.rstrip() for line in lines)
