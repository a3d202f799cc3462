# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of a run, cut into sections for the page of `stowage report`. Needs no torch."""

import contextlib
import io
import re
from itertools import groupby

from stowage.explaining.graph import explain_graph
from stowage.explaining.graph_text import print_graph_explanation
from stowage.explaining.loop_text import print_explanation
from stowage.explaining.moves import explain as explain_step
from stowage.store import Row, Store, StoreError

#: What the page shows in its own way: a section's table, a whole section.
_SHOWN_TABLES, _SHOWN_SECTIONS = ("Peak",), ("What lives at the peak", "There live")
TEXT, ITEM, TABLE = "text", "item", "table"


def explanation(store: Store, run: Row) -> list[Row]:
    """Sections in order, each a title, which may be empty, and blocks of text, items of a list and lines of tables."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            if run["kind"] == "step":
                print_explanation(explain_step(*store.recorded_step(run)))
            else:
                print_graph_explanation(explain_graph(store, run), run)
    except StoreError:
        return []  # a run that allocates nothing has nothing to explain
    return sections(printed.getvalue())


def sections(text: str) -> list[Row]:
    """Of what `stowage explain` prints: a title begins a line after an empty one, what belongs to it is indented."""
    found: list[Row] = []
    for chunk in text.strip("\n").split("\n\n"):
        lines = chunk.split("\n")
        if _is_title(lines[0]):
            found.append({"title": lines.pop(0).removesuffix(":"), "blocks": []})
        elif not found:
            found.append({"title": "", "blocks": []})
        found[-1]["blocks"] += _blocks(lines)
    for section in found:
        if section["title"] in _SHOWN_TABLES:
            section["blocks"] = [block for block in section["blocks"] if block["kind"] != TABLE]
    return [section for section in found if section["blocks"] and section["title"] not in _SHOWN_SECTIONS]


def _is_title(line: str) -> bool:
    return not line.startswith((" ", "- ")) and not line.endswith(".")


def _blocks(lines: list[str]) -> list[Row]:
    """Lines of text are joined again, those of a table kept as they are: their columns are two spaces apart."""
    blocks: list[Row] = []
    for kind, group in groupby(lines, _kind):
        members = list(group)
        if kind == TABLE:
            blocks.append({"kind": TABLE, "text": "\n".join(members)})
        else:
            joined = "\n".join(member.strip() if not member.startswith("- ") else member for member in members)
            starts = re.split(r"\n(?=- )", joined)
            blocks += [{"kind": ITEM if start.startswith("- ") else TEXT, "text": start.removeprefix("- ").replace("\n", " ")}
                       for start in starts]
    return blocks


def _kind(line: str) -> str:
    return TABLE if "  " in line.strip() or line.startswith(" " * 8) else TEXT  # or the end of a row
