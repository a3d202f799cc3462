# SPDX-License-Identifier: Apache-2.0
"""The page of `stowage report` in a browser: headless Chromium."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.sample_store import MIB, change_store, make_store
from report.conftest import READY, write_page

OpenPage = Callable[..., Any]

# Of the charts, in pixels: see chart.js.
LEFT, BOTTOM = 66, 20
HOSTILE = "</script><img src=x onerror=alert(1)>"
BEFORE, AFTER, LAYOUT = "#memory .chart >> nth=0", "#memory .chart >> nth=1", "#layout .chart"


def place(page: Any, chart: str, x: float, y: float) -> tuple[float, float]:
    """Where on the page the chart shows that share of its time, and of its height from below."""
    page.locator(chart).scroll_into_view_if_needed()
    box = page.locator(chart).bounding_box()
    return box["x"] + LEFT + x * (box["width"] - LEFT), box["y"] + (1 - y) * (box["height"] - BOTTOM)


def hover(page: Any, chart: str, x: float, y: float) -> list[str]:
    """The tip there, line by line."""
    page.mouse.move(*place(page, chart, x, y))
    if page.locator("#tip").is_hidden():
        return []
    return page.locator("#tip b, #tip tr").all_inner_texts()


def colour(page: Any, chart: str, x: float, y: float) -> list[int]:
    return page.locator(f"{chart} >> canvas >> nth=0").evaluate("""(canvas, [x, y, left, bottom]) => {
        const ratio = canvas.width / canvas.clientWidth, height = canvas.clientHeight - bottom;
        const copy = new OffscreenCanvas(1, 1).getContext("2d");
        copy.drawImage(canvas, -Math.floor((left + x * (canvas.clientWidth - left)) * ratio),
                       -Math.floor((1 - y) * height * ratio));
        return [...copy.getImageData(0, 0, 1, 1).data];
    }""", [x, y, LEFT, BOTTOM])


def swatch(page: Any, name: str) -> list[int]:
    text = page.locator("#legend li", has_text=name).locator(".swatch").evaluate("it => getComputedStyle(it).backgroundColor")
    return [int(part) for part in text.removeprefix("rgb(").rstrip(")").split(",")] + [255]


def test_key_figures(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    assert page.title() == "step - stowage"
    assert page.locator("#figures dd").all_inner_texts() == [
        "16.00 MiB → 13.00 MiB", "before and after planning", "18.7 %", "3.00 MiB", "13.00 MiB",
        "reached: no order is better", "10.00 MiB", "no layout needs less"]
    assert page.locator("#peak tr").all_inner_texts() == [
        "class\tbefore planning\tafter planning", "temporaries\t13.00 MiB\t10.00 MiB", "inputs\t3.00 MiB\t3.00 MiB",
        "constants\t4 B\t4 B", "together\t16.00 MiB\t13.00 MiB"]


def test_charts_are_drawn_in_the_colours_of_classes(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    ceiling = 1.14 * (16 * MIB + 4)
    # Op 1 of the program, op 2 in the plan, lives with b: 12 MiB of temporaries over 3 MiB of inputs.
    assert colour(page, BEFORE, 1.9 / 6, 2 * MIB / ceiling) == swatch(page, "inputs")
    assert colour(page, BEFORE, 1.9 / 6, 14 * MIB / ceiling) == swatch(page, "temporaries")
    assert colour(page, AFTER, 2.9 / 6, 11 * MIB / ceiling) == swatch(page, "temporaries")
    # After the last free: inputs alone. Nothing is drawn above, but for the lines of the axis.
    assert colour(page, AFTER, 5.5 / 6, 2 * MIB / ceiling) == swatch(page, "inputs")
    assert colour(page, AFTER, 5.5 / 6, 6 * MIB / ceiling) == [0, 0, 0, 0]
    # a is the fourth tensor, which has the class's first shade.
    assert colour(page, LAYOUT, 0.9 / 6, 1 / 10) == swatch(page, "temporaries")
    assert colour(page, LAYOUT, 0.9 / 6, 9.5 / 10) == [0, 0, 0, 0]


def test_hovering_over_the_layout_names_the_tensor(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    assert hover(page, LAYOUT, 3.0 / 6, 7.5 / 10) == [
        "b", "size\t8.00 MiB", "class\ttemporaries", "shape\tFloat [2048, 1024]", "module\tnet", "made by\t1 aten::cat 'b'",
        "at\tnet.py:8", "last used by\t3 aten::sum 'd'", "address\t0 B", "steps\t2 to 4"]
    assert hover(page, LAYOUT, 0.8 / 6, 3 / 10)[0] == "a"
    assert hover(page, LAYOUT, 3.0 / 6, 8.5 / 10)[0] == "c"
    assert hover(page, LAYOUT, 5.5 / 6, 0.5) == []


def test_hovering_over_memory_names_the_op_and_what_lives(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    assert hover(page, BEFORE, 2.5 / 6, 0.3) == [
        "aten::mean 'c'", "step\t2 (op 2)", "module\tnet at net.py:9", "live\t16.00 MiB", "temporaries\t13.00 MiB",
        "inputs\t3.00 MiB", "constants\t4 B"]
    assert hover(page, AFTER, 2.5 / 6, 0.3)[:4] == ["aten::cat 'b'", "step\t2 (op 1)", "module\tnet at net.py:8",
                                                    "live\t12.00 MiB"]


def test_a_tap_shows_the_tensor_until_one_elsewhere(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"], width=390, touch=True)
    page.touchscreen.tap(*place(page, LAYOUT, 3.0 / 6, 7.5 / 10))
    assert page.locator("#tip b").inner_text() == "b"
    box = page.locator("#tip").bounding_box()
    assert 0 <= box["x"] and box["x"] + box["width"] <= 390
    page.locator("#layout-title").tap()
    assert page.locator("#tip").is_hidden()


def test_the_old_gradient_of_a_loop_lies_in_its_other_place(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["loop"])
    assert page.locator("#figures dd").all_inner_texts()[:2] == ["8.00 MiB", "in a step of a loop the order stays"]
    old, new = hover(page, LAYOUT, 0.25 / 4, 10 / 12), hover(page, LAYOUT, 3.5 / 4, 6 / 12)
    assert (old[0], old[-2:]) == ("mm.0", ["address\t8,388,608 B", "steps\t0 to 1"])
    assert (new[0], new[-2:]) == ("mm.0", ["address\t4,194,304 B", "steps\t2 to 4"])
    assert hover(page, LAYOUT, 3.5 / 4, 10 / 12) == []


def test_a_run_without_a_plan(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["unplanned"])
    assert page.locator("#figures dd").all_inner_texts() == ["64 B", "not planned"]
    assert page.locator(".chart").count() == 1


def test_a_plan_within_a_budget(open_page: OpenPage, tmp_path: Path) -> None:
    make_store(tmp_path / "run.db")
    change_store(tmp_path / "run.db", f"INSERT INTO budgets VALUES (2, {14 * MIB}, NULL, {20 * MIB}, 4000, 5000, 4000, "
                                      f"{12 * MIB}, 'feasible')")
    page = open_page(write_page(tmp_path / "run.db", tmp_path / "page.html", 2))
    assert page.locator("#figures dd").all_inner_texts()[:4] == [
        "20.00 MiB → 13.00 MiB", "unplanned, and within the budget", "35.0 %", "7.00 MiB"]
    assert page.locator("#peak th").all_inner_texts()[:3] == ["class", "in program order", "after planning"]


def test_dragging_zooms_and_a_double_click_shows_all(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    page.mouse.move(*place(page, LAYOUT, 0.4, 0.2))
    page.mouse.down()
    page.mouse.move(*place(page, LAYOUT, 0.8, 0.7), steps=3)
    page.mouse.up()
    # What is shown is now [0.4, 0.8) of the time and [2, 7) of 10 MiB: b from begin to end.
    assert hover(page, LAYOUT, (3.0 / 6 - 0.4) / 0.4, 0.9)[0] == "b"
    assert hover(page, LAYOUT, 0.9, 0.9) == []
    page.mouse.dblclick(*place(page, LAYOUT, 0.5, 0.5))
    assert hover(page, LAYOUT, 3.0 / 6, 8.5 / 10)[0] == "c"


def test_a_click_marks_the_row_and_leaves_the_page_where_it_is(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    where = place(page, LAYOUT, 3.0 / 6, 8.5 / 10)
    scrolled = page.evaluate("scrollY")
    page.mouse.click(*where)
    assert page.evaluate("scrollY") == scrolled
    assert page.locator("tr[aria-current]").inner_text().split("\t")[:2] == ["1.00 MiB", "c"]


def test_every_control_is_reached_by_tab_and_has_a_name(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate("""() => {
            const it = document.activeElement;
            if (it === document.body) return null;
            const {outlineStyle, outlineWidth} = getComputedStyle(it), label = (name) => it.getAttribute(`aria-${name}`);
            if (outlineStyle === "none" || parseFloat(outlineWidth) < 2) return "no focus seen: " + it.outerHTML;
            return it.closest("#explanation")?.id || it.id || it.dataset.zoom || label("label") ||
                label("labelledby") || it.innerText;
        }""")
        if name is None:
            break
        if name != "explanation" or reached[-1] != name:
            reached.append(name)
    assert reached == [
        "Skip to the tables", "theme", "in", "out", "all", "peak", "before planning: live memory at each step",
        "after planning: live memory at each step", "Layout: tensors by the time and the addresses they take",
        "Table of classes", "explanation", "tab-ops", "only-marked", "filter", "Ops", "step ▲", "kind", "name", "module",
        "source", "live", "live before",
        "allocates", "frees", "time", "op", "moved"]


def test_what_a_screen_reader_is_told(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    nodes = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    controls = [(role, name) for role, name in nodes if role in ("button", "slider", "tab", "checkbox", "searchbox", "grid",
                                                                 "table", "region", "list")]
    assert len(controls) > 20
    assert [control for control in controls if not control[1] and control[0] not in ("list", "table")] == []
    assert ("searchbox", "Filter rows by text") in controls
    assert {name for role, name in nodes if role == "heading"} == {
        "step", "Live memory over the step", "Before planning", "After planning", "In short",
        "What lives at the peak", "Why, and what would help", "Where each tensor lies", "Ops and tensors"}


def test_the_keyboard_moves_through_time_and_opens_the_op(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    chart = page.locator(AFTER)
    chart.focus()
    page.keyboard.press("p")
    assert chart.get_attribute("aria-valuenow") == "3"
    assert chart.get_attribute("aria-valuetext") == ("aten::sum 'd': step 3 (op 3), live 13.00 MiB, temporaries 10.00 MiB, "
                                                     "inputs 3.00 MiB, constants 4 B")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tip b").inner_text() == "aten::cat 'b'"
    page.keyboard.press("Enter")
    assert page.locator("tr[aria-current]").inner_text().split("\t")[:3] == ["2", "aten::cat", "b"]


def test_the_keyboard_moves_through_the_layout(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    chart = page.locator(LAYOUT)
    chart.focus()
    seen = []
    for key in ("Home", "ArrowRight", "End", "ArrowDown", "ArrowUp", "p"):
        page.keyboard.press(key)
        seen.append(page.locator("#tip b").inner_text())
    # From d (at 9 MiB) down to c (at 8), and back up.
    assert seen == ["a", "tensor 4", "d", "c", "d", "c"]
    page.keyboard.press("Enter")
    assert page.locator("#tab-tensors").get_attribute("aria-selected") == "true"
    assert page.locator("tr[aria-current]").inner_text().split("\t")[:3] == ["1.00 MiB", "c", "temporaries"]


def test_the_table_leads_to_the_charts(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    page.locator("table[aria-label=Ops]").focus()
    for key in ("Home", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.locator(AFTER).get_attribute("aria-valuetext").startswith("aten::mean 'c': step 1 (op 2)")


def rows(page: Any) -> list[list[str]]:
    """The table's, at one moment: it replaces them whenever its size changes."""
    return page.evaluate("""() => [...document.querySelectorAll("#table tr[id]")].filter((row) => row.checkVisibility())
        .map((row) => [...row.cells].map((cell) => cell.innerText))""")


def test_sorting_and_filtering_ops(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    assert [row[2] for row in rows(page)] == ["a", "c", "b", "d", "loss", "w.1"]
    page.get_by_role("button", name="live", exact=True).click()
    assert [row[5] for row in rows(page)] == ["13.00 MiB", "12.00 MiB", "8.00 MiB", "7.50 MiB", "5.00 MiB", "3.00 MiB"]
    assert page.locator("th[aria-sort]:visible").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="kind").click()
    assert [row[1] for row in rows(page)] == sorted(row[1] for row in rows(page))
    page.locator("#filter").fill("net ATEN::m")
    assert [row[2] for row in rows(page)] == ["a", "c"]
    assert page.locator("#count").inner_text() == "2 of 6 ops"
    page.locator("#filter").fill("")
    page.locator("#only-marked").check()
    assert [row[-1] for row in rows(page)] == ["moved"]


def test_tensors_at_the_peak(pages: dict[str, Path], open_page: OpenPage) -> None:
    page = open_page(pages["graph"])
    page.locator("#tab-tensors").click()
    assert [row[1] for row in rows(page)] == ["b", "a", "w", "x", "c", "d", "tensor 4", "lr", "loss"]
    page.locator("#only-marked").check()
    assert [row[1] for row in rows(page)] == ["b", "w", "x", "c", "d", "lr"]
    assert page.locator("#count").inner_text() == "6 of 9 tensors"


def test_dark_changes_the_colours_of_page_and_charts(pages: dict[str, Path], open_page: OpenPage) -> None:
    def look(page: Any) -> tuple[str, str, list[int]]:
        return (page.evaluate("getComputedStyle(document.body).backgroundColor"),
                page.evaluate("getComputedStyle(document.body).color"), colour(page, LAYOUT, 0.9 / 6, 1 / 10))

    light, dark = open_page(pages["graph"]), open_page(pages["graph"], scheme="dark")
    were_light, were_dark = look(light), look(dark)
    assert not any(one == other for one, other in zip(were_light, were_dark, strict=True))
    light.locator("#theme").click()
    dark.locator("#theme").click()
    assert (look(light), look(dark)) == (were_dark, were_light)
    # As the system's setting changes, so does a page on which nobody chose.
    other = open_page(pages["graph"])
    other.emulate_media(color_scheme="dark")
    assert look(other) == were_dark


CONTRASTS = """() => {
    const parts = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([red, green, blue]) => [red, green, blue].map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const below = (element) => {
        for (let it = element; it; it = it.parentElement) {
            const found = parts(getComputedStyle(it).backgroundColor);
            if (found.length === 3 || found[3] === 1) return found;
        }
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("script")) continue;
        const levels = [light(parts(getComputedStyle(element).color)), light(below(element))].sort((a, b) => b - a);
        found.push([(levels[0] + 0.05) / (levels[1] + 0.05), walker.currentNode.data]);
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(pages: dict[str, Path], open_page: OpenPage, scheme: str) -> None:
    page = open_page(pages["graph"], scheme=scheme)
    page.locator("#table tr[id] >> nth=2").click()
    found = page.evaluate(CONTRASTS)
    assert len(found) > 80
    assert [(round(ratio, 2), text) for ratio, text in found if ratio < 4.5] == []


@pytest.mark.parametrize("width", [1280, 390, 360])
@pytest.mark.parametrize("name", ["graph", "loop", "unplanned"])
def test_nothing_is_wider_than_the_screen(pages: dict[str, Path], open_page: OpenPage, tmp_path: Path, width: int,
                                          name: str) -> None:
    page = open_page(pages[name], width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = page.evaluate("""(width) => [...document.querySelectorAll("body *")]
        .filter((it) => !it.closest(".scroll, .rows, .skip, .visually-hidden") && it.getBoundingClientRect().right > width)
        .map((it) => it.outerHTML)""", width)
    assert outside == []
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_text_of_the_store_stays_text(open_page: OpenPage, tmp_path: Path) -> None:
    make_store(tmp_path / "run.db")
    change_store(tmp_path / "run.db", f"UPDATE tensors SET name = '{HOSTILE}'; UPDATE runs SET name = '{HOSTILE}';"
                                      f"UPDATE ops SET name = '{HOSTILE}', kind = '{HOSTILE}', scope = '{HOSTILE}'")
    page = open_page(write_page(tmp_path / "run.db", tmp_path / "page.html", 2))
    assert page.locator("h1").inner_text() == HOSTILE
    assert hover(page, LAYOUT, 3.0 / 6, 7.5 / 10)[0] == HOSTILE
    page.locator("#tab-tensors").click()
    assert rows(page)[0][1] == HOSTILE
    assert page.locator("img").count() == 0


def test_50000_ops(big_page: Path, open_page: OpenPage) -> None:
    # The best of three: other programs may keep the machine busy.
    pages = []
    while len(pages) < 3 and not any(page.evaluate(READY) < 5000 for page in pages):
        pages.append(open_page(big_page))
    page = pages[-1]
    assert page.evaluate(READY) < 5000
    assert page.locator("#context").inner_text().split(" · ")[4] == "50,000 ops"
    assert colour(page, LAYOUT, 0.5, 0.5)[3] == colour(page, AFTER, 0.5, 0.5)[3] == 255
    assert hover(page, LAYOUT, 0.5, 0.5)[0].startswith("relu_")

    table = page.locator("table[aria-label=Ops]")
    assert table.get_attribute("aria-rowcount") == "50001"
    assert page.locator("#table tr").count() < 100
    page.locator(".rows >> nth=0").evaluate("it => { it.scrollTop = it.scrollHeight; }")
    page.get_by_text("backward_24999").wait_for()
    assert rows(page)[-1][0] == "49999"
    page.locator(".rows >> nth=0").evaluate("it => { it.scrollTop = 28 * 30000; }")
    page.get_by_text("backward_5005", exact=True).wait_for()

    page.locator("#filter").fill("layer42 backward")
    assert page.locator("#count").inner_text() == "250 of 50,000 ops"
    page.locator("#filter").fill("")
    started = page.evaluate("performance.now()")
    page.get_by_role("button", name="live", exact=True).click()
    assert rows(page)[0][0] == "24999"
    page.keyboard.press("Tab")
    assert page.evaluate("performance.now()") - started < 2000


def test_zooming_into_50000_ops(big_page: Path, open_page: OpenPage) -> None:
    page = open_page(big_page, width=390)
    page.locator("[data-zoom=peak]").click()
    page.locator(AFTER).focus()
    page.keyboard.press("p")
    assert page.locator(AFTER).get_attribute("aria-valuenow") == "24999"
