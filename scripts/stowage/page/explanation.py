# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` says of a run, in sections for the page of `stowage report`. Needs no torch."""

from collections.abc import Sequence
from typing import Any

from stowage.explaining import graph_text, loop_text
from stowage.explaining.graph import explain_graph
from stowage.explaining.moves import explain as explain_step
from stowage.store import Row, Store, StoreError
from stowage.text import table_lines

TEXT, ITEM, TABLE = "text", "item", "table"
#: What the page shows in its own way.
_SHOWN = (graph_text.AT_PEAK, loop_text.AT_PEAK)


def explanation(store: Store, run: Row) -> list[Row]:
    """Sections in order, each a title, which may be empty, and blocks of text, items of a list and tables."""
    out = Sections()
    try:
        if run["kind"] == "step":
            loop_text.tell_loop(explain_step(*store.recorded_step(run)), out)
        else:
            graph_text.tell_graph(explain_graph(store, run), run, out)
    except StoreError:
        return []  # a run that allocates nothing has nothing to explain
    return [{"title": section["title"].removesuffix(":"), "blocks": section["blocks"]} for section in out.sections
            if section["blocks"] and section["title"] not in _SHOWN]


class Sections:
    """Collects an explanation; see `Writer`."""

    def __init__(self) -> None:
        self.sections: list[Row] = [{"title": "", "blocks": []}]

    def title(self, text: str) -> None:
        self.head(text)

    def fact(self, text: str) -> None:
        """The page begins with the peaks."""

    def head(self, text: str) -> None:
        self.sections.append({"title": text, "blocks": []})

    def say(self, text: str) -> None:
        self._add(TEXT, text)

    def item(self, text: str) -> None:
        self._add(ITEM, text)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._add(TABLE, "\n".join(table_lines(headings, rows)))

    def _add(self, kind: str, text: str) -> None:
        self.sections[-1]["blocks"].append({"kind": kind, "text": text})
