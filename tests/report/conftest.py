# SPDX-License-Identifier: Apache-2.0
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.sample_store import STEP, change_store, make_store
from report.big_store import write

from stowage.page.report import collect, render
from stowage.store import Store

CHROMIUM = shutil.which("chromium")
READY = "Number(document.documentElement.dataset.readyMs)"


def write_page(store: Path, page: Path, run_id: int | None = None) -> Path:
    with Store(str(store)) as opened:
        page.write_text(render(collect(opened, opened.run(run_id))))
    return page


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the store of sample_store.py: its planned graph, a step of a loop, a run without a plan."""
    folder = tmp_path_factory.mktemp("pages")
    make_store(folder / "run.db")
    change_store(folder / "run.db", STEP)
    return {name: write_page(folder / "run.db", folder / f"{name}.html", run_id)
            for name, run_id in (("graph", 2), ("loop", 4), ("unplanned", 3))}


@pytest.fixture(scope="session")
def big_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 50,000 ops."""
    folder = tmp_path_factory.mktemp("big")
    write(folder / "big.db", 50_000)
    return write_page(folder / "big.db", folder / "big.html")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page. When the test ends, none may have written to the console, failed, or asked for anything more."""
    wrong: list[str] = []
    contexts = []

    def open_one(path: Path, width: int = 1280, height: int = 900, scheme: str = "light", touch: bool = False) -> Any:
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch))
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: request.url != path.as_uri() and wrong.append(f"request: {request.url}"))
        page.goto(path.as_uri())
        page.wait_for_function(f"{READY} > 0")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert wrong == []
