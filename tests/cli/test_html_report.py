# SPDX-License-Identifier: Apache-2.0
"""The page that `report` writes, without a browser: its figures are those of the store, and it is safe to open."""

import base64
import hashlib
import json
import re
from collections import Counter, defaultdict
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import pytest
from cli.sample_store import MIB, ON_CUDA, STEP, Stowage, change_store
from cli.test_commands import NOTE

from stowage.page.explanation import Sections
from stowage.page.report import collect
from stowage.store import Row, Store

HOSTILE = """</script><img src=x onerror=alert(1)><!--"""


class Elements(HTMLParser):
    """What a browser would make of the page: elements with their attributes, and the text in scripts by their type."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: defaultdict[str | None, str] = defaultdict(str)
        self.style = self.title = self.open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self.open = tag

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open == "script":
            self.scripts[self.elements[-1][1].get("type")] += data
        elif self.open in ("style", "title"):
            setattr(self, self.open, getattr(self, self.open) + data)


def page_of(stowage: Stowage, tmp_path: Path, *arguments: str) -> str:
    result = stowage("report", "run.db", "-o", "page.html", "--force", *arguments)
    assert result.returncode == 0, result.stderr
    return (tmp_path / "page.html").read_text()


def data_of(store: Path, run_id: int | None = None) -> Row:
    with Store(str(store)) as opened:
        return collect(opened, opened.run(run_id))


def test_says_what_it_wrote(stowage: Stowage, store: Path, tmp_path: Path) -> None:
    result = stowage("report", "run.db", "-o", "page.html")
    written = (tmp_path / "page.html").stat().st_size / 1024
    assert (result.returncode, result.stdout) == (0, f"wrote page.html ({written:.2f} KiB); open it in a browser\n")
    assert result.stderr == NOTE


def test_the_page_is_named_after_the_store_and_never_overwritten(stowage: Stowage, store: Path, tmp_path: Path) -> None:
    (tmp_path / "run.html").write_text("mine")
    result = stowage("report", "run.db")
    assert (result.returncode, result.stdout, result.stderr) == (
        2, "", "stowage: cannot write 'run.html': it exists; choose another with -o, or give --force\n")
    assert (tmp_path / "run.html").read_text() == "mine"
    assert stowage("report", "run.db", "--force").returncode == 0
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")


def test_never_writes_over_the_store(stowage: Stowage, store: Path) -> None:
    before = store.read_bytes()
    result = stowage("report", "run.db", "-o", "run.db", "--force")
    assert (result.returncode, result.stderr) == (
        2, "stowage: cannot write 'run.db': it is the store; choose another with -o\n")
    assert store.read_bytes() == before


def test_a_folder_that_is_not_there(stowage: Stowage, store: Path) -> None:
    result = stowage("report", "run.db", "-o", "nowhere/page.html")
    assert (result.returncode, result.stderr) == (
        2, "stowage: cannot write 'nowhere/page.html': no such file or directory; choose another with -o\n")


def test_json_is_what_the_page_shows(stowage: Stowage, store: Path, tmp_path: Path) -> None:
    printed = json.loads(stowage("report", "run.db", "--json").stdout)
    assert not (tmp_path / "run.html").exists()
    assert json.loads(Elements(page_of(stowage, tmp_path)).scripts["application/json"]) == printed
    assert printed == json.loads(json.dumps(data_of(store)))


@pytest.mark.parametrize(("run_id", "script"), [(2, ""), (2, ON_CUDA), (4, STEP)])
def test_peaks_and_what_lives_there_are_the_stores(store: Path, run_id: int, script: str) -> None:
    change_store(store, script)
    data = data_of(store, run_id)
    with Store(str(store)) as opened:
        for side, planned in ((data["before"], False), (data["after"], True)):
            view, live_view = ("planned_peak", "live_at_planned_peak") if planned else ("peak", "live_at_peak")
            peak = opened.query(f"SELECT live_bytes, op FROM {view} WHERE run_id = ?", run_id)[0]
            live = opened.query(f"SELECT tensor, size_bytes FROM {live_view} WHERE run_id = ? ORDER BY tensor", run_id)
            assert (side["peak_bytes"], side["peak_op"]) == (peak["live_bytes"], peak["op"])
            assert side["peak_tensors"] == [tensor["tensor"] for tensor in live]
            sizes: Counter[str] = Counter()
            for tensor in live:
                sizes[data["tensors"]["class"][tensor["tensor"]]] += tensor["size_bytes"]
            assert side["peak_classes"] == dict(sizes)
            assert sum(sizes.values()) == peak["live_bytes"]


def test_its_events_are_the_stores(store: Path) -> None:
    data = data_of(store)
    # a, its workspace and that freed; c, which frees a; b; d, which frees b; the loss; c and d freed.
    assert data["order"] == [0, 2, 1, 3, 4, 5]
    assert data["after"]["op"] == [0, 0, 0, 2, 2, 1, 3, 3, 4, 4, 4]
    assert data["after"]["tensor"] == [3, 4, 4, 6, 3, 5, 7, 5, 8, 6, 7]
    assert data["after"]["change_bytes"] == [4 * MIB, MIB // 2, -MIB // 2, MIB, -4 * MIB, 8 * MIB, MIB, -8 * MIB, 4, -MIB,
                                             -MIB]
    assert data["start"] == [0, 1, 2]
    assert data["moved"] in ([1], [2])


def test_slots_are_taken_from_an_allocation_to_its_free(store: Path) -> None:
    assert data_of(store)["slots"] == {
        "tensor": [3, 4, 5, 6, 7],
        "offset_bytes": [0, 4 * MIB, 0, 8 * MIB, 9 * MIB],
        "size_bytes": [4 * MIB, MIB // 2, 8 * MIB, MIB, MIB],
        "begin": [0, 1, 5, 3, 6],
        "end": [4, 2, 7, 9, 10],
    }


def test_what_the_step_before_left_lies_in_its_other_place(store: Path) -> None:
    change_store(store, STEP)
    slots = data_of(store, 4)["slots"]
    gradient = [row for row in zip(*slots.values(), strict=True) if row[0] == 1]
    # The old gradient lies at 8 MiB from the step's begin to its first event, the new one at 4 MiB to the step's end.
    assert gradient == [(1, 8 * MIB, 4 * MIB, None, 0), (1, 4 * MIB, 4 * MIB, 2, None)]


@pytest.mark.parametrize("script", ["", STEP])
def test_no_two_slots_overlap(store: Path, script: str) -> None:
    change_store(store, script)
    data = data_of(store, 4 if script else 2)
    rows = [(offset, offset + size, -1 if begin is None else begin, len(data["after"]["op"]) if end is None else end)
            for _, offset, size, begin, end in zip(*data["slots"].values(), strict=True)]
    for one, other in combinations(rows, 2):
        assert one[0] >= other[1] or other[0] >= one[1] or one[2] >= other[3] or other[2] >= one[3], (one, other)


def test_a_run_without_a_plan(stowage: Stowage, store: Path) -> None:
    data = data_of(store, 3)
    assert (data["after"], data["order"], data["slots"]) == (None, None, None)
    assert data["story"] == ["The peak is 64 B before the first op.", "The run has no plan."]


def test_a_run_that_ended_early(store: Path) -> None:
    assert data_of(store, 1)["story"] == [
        "The peak is 64 B before the first op.", "The run has no plan.",
        "The run ended early: what is shown is what was recorded until then.",
        "12 records were dropped while recording, so that figures may be too low."]


def test_its_words(store: Path) -> None:
    assert data_of(store)["story"] == [
        "In program order the peak is 16.00 MiB during op 2, aten::mean 'c' in net at net.py:9.",
        "After planning it is 13.00 MiB during op 3, aten::sum 'd': 3.00 MiB less.",
        "That is the lower bound: no order of these ops has a lower peak.",
        "What the step allocates lies in one arena of 10.00 MiB: no layout of this order needs less.",
        "Planning took 1.50 ms."]


def test_its_words_within_a_budget(store: Path) -> None:
    change_store(store, f"""
        INSERT INTO budgets VALUES (2, {14 * MIB}, NULL, {20 * MIB}, 4000, 5000, 4000, {12 * MIB}, 'feasible');
        UPDATE ops SET program_op = CASE op WHEN 3 THEN 0 ELSE op END WHERE run_id = 2""")
    data = data_of(store)
    assert data["unplanned_peak_bytes"] == 20 * MIB
    assert data["story"][0] == ("To stay within a budget, 1 ops run again instead of keeping what they made: without that the "
                                "peak is 20.00 MiB, with it the step is predicted to take 1.250 times as long.")


def test_sections_of_an_explanation() -> None:
    out = Sections()
    out.say("In words.")
    out.title("Peak of 'net'")
    out.fact("before planning   16.00 MiB  in the backward")
    out.head("What would help next:")
    out.item("less")
    out.table([">size", "what"], [["1 B", "all"], ["12 B", "more"]])
    assert out.sections == [
        {"title": "", "blocks": [{"kind": "text", "text": "In words."}]},
        {"title": "Peak of 'net'", "blocks": []},
        {"title": "What would help next:", "blocks": [
            {"kind": "item", "text": "less"}, {"kind": "table", "text": "size  what\n 1 B  all\n12 B  more"}]},
    ]


def test_a_graph_and_a_step_are_explained_as_explain_does(stowage: Stowage, store: Path) -> None:
    change_store(store, STEP)
    for run_id in (2, 4):
        printed = stowage("explain", "run.db", "--run", str(run_id)).stdout
        told = data_of(store, run_id)["explanation"]
        assert len(told) >= 2
        for section in told:
            assert section["title"] in printed
            for block in section["blocks"]:
                if block["kind"] == "table":
                    assert all(line.rstrip() in printed for line in block["text"].splitlines())
                else:
                    assert block["text"] in " ".join(printed.split())


def test_the_page_loads_nothing(stowage: Stowage, store: Path, tmp_path: Path) -> None:
    page = page_of(stowage, tmp_path)
    found = Elements(page)
    assert not re.search(r"(?:https?:)?//[a-z]|@import|url\(", found.style + page.split("<script")[0], re.IGNORECASE)
    for tag, attributes in found.elements:
        assert tag not in ("img", "iframe", "link", "object", "embed"), tag
        assert not {"src", "srcset", "style"} & attributes.keys() and not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(|https?:", found.scripts[None])


def test_only_its_own_script_and_style_may_run(stowage: Stowage, store: Path, tmp_path: Path) -> None:
    found = Elements(page_of(stowage, tmp_path))
    policy = next(attributes["content"] for _, attributes in found.elements
                  if attributes.get("http-equiv") == "Content-Security-Policy")
    style, script = (f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
                     for text in (found.style, found.scripts[None]))
    assert policy == f"default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


def test_text_of_the_store_stays_text(stowage: Stowage, store: Path, tmp_path: Path) -> None:
    plain = Elements(page_of(stowage, tmp_path))
    change_store(store, f"""
        UPDATE tensors SET name = '{HOSTILE}', shape = '{HOSTILE}', dtype = '{HOSTILE}';
        UPDATE ops SET name = '{HOSTILE}', kind = '{HOSTILE}', scope = '{HOSTILE}', source = '{{{{style}}}}';
        UPDATE runs SET name = '{HOSTILE}', device = '{HOSTILE}', torch_version = '{HOSTILE}'""")
    page = page_of(stowage, tmp_path)
    found = Elements(page)
    assert found.elements == plain.elements
    assert "<img" not in page
    data = json.loads(found.scripts["application/json"])
    assert set(data["tensors"]["name"]) == set(data["ops"]["kind"]) == {HOSTILE}
    assert set(data["ops"]["source"]) == {"{{style}}"}
    assert found.title == f"{HOSTILE} - stowage"


def test_needs_no_torch(stowage_process: Stowage, store: Path, tmp_path: Path) -> None:
    result = stowage_process("report", "run.db", "-o", "page.html")
    assert (result.returncode, (tmp_path / "page.html").exists()) == (0, True), result.stderr


@pytest.mark.parametrize(("script", "says"), [
    ("PRAGMA foreign_keys = ON; DELETE FROM runs",
     "cannot choose a run of store 'run.db': it has none; profile a run into it first"),
    ("PRAGMA foreign_keys = OFF; DELETE FROM ops WHERE run_id = 2 AND op = 2",
     "cannot read run 2 of store 'run.db': uses name op 2, which is not there; the file is damaged: move it away and profile "
     "again"),
])
def test_an_empty_and_a_damaged_store(stowage: Stowage, store: Path, tmp_path: Path, script: str, says: str) -> None:
    change_store(store, script)
    result = stowage("report", "run.db")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"stowage: {says}\n")
    assert not (tmp_path / "run.html").exists()
