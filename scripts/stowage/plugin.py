# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libstowage.so, and wraps its ops."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

_loaded = False
_generation = 0
_BUDGET_DEFAULTS = {"budget": "", "slowdown": "", "over_budget": "continue"}
_given: set[str] = set()  # of these, by `enable`


def library() -> Path:
    """The plugin: STOWAGE_LIBRARY, else the one beside this package."""
    path = Path(os.environ.get("STOWAGE_LIBRARY") or Path(__file__).with_name("libstowage.so"))
    if not path.is_file():
        raise RuntimeError(f"cannot load stowage: '{path}' not found; build the plugin, or set STOWAGE_LIBRARY to it")
    return path


def load() -> Any:
    """Loads the plugin once and returns its ops. A plugin built for another torch is refused before it is loaded."""
    global _loaded
    import torch

    if not _loaded:
        path = library()
        built, found = _torch_built_for(path), torch.__version__
        if built is not None and _release(built) != _release(found):
            raise RuntimeError(
                f"cannot load stowage: built for torch {_release(built)}, found {_release(found)}; "
                "install stowage again in this environment"
            )
        torch.ops.load_library(str(path))
        _loaded = True
    return torch.ops.stowage


def loaded() -> bool:
    """Whether this package has loaded the plugin."""
    return _loaded


def enable(
    store: str | os.PathLike = "",
    *,
    verify: bool = False,
    budget: int | float | str | None = None,
    slowdown: float | None = None,
    over_budget: str | None = None,
) -> None:
    """Profiles and plans TorchScript graphs from now on.

    Runs and plans are kept in the SQLite file `store`; without one, in what the option `store` names. `verify` sets
    the option of that name: every planned run is compared with the unplanned one, op by op, which is slow; `report`
    and `status` say what was found.

    With `budget`, a captured step takes no more memory than that: ops run again, where that costs least time, instead
    of keeping what they made, and on CUDA tensors are copied to host memory and back. It is in bytes, as `6 * 2**30` or
    "6GiB", or, from 0 to 1, a share of what the step takes unplanned. With `slowdown`, from 1, a step takes the least
    memory for which it lasts at most that many times as long. A step that cannot be kept within its budget goes on with
    the least that was found, and says so; with `over_budget="stop"` it raises an error. What is not given is what the
    option of that name says; what an earlier call gave holds no more.
    """
    global _generation, _given
    if verify:
        set_option("verify", "1")
    asked = {"budget": budget, "slowdown": slowdown, "over_budget": over_budget}
    given = {name: _option_text(value) for name, value in asked.items() if value is not None}
    for name in _given - given.keys():
        set_option(name, _BUDGET_DEFAULTS[name])
    for name, text in given.items():
        set_option(name, text)
    _given = set(given)
    load().enable(os.fspath(store))
    _generation += 1


def disable() -> None:
    """Plans no further graphs; graphs that TorchScript optimises from now on run as torch made them."""
    global _generation
    load().disable()
    _generation += 1


def generation() -> int:
    """Changes with `enable` and `disable`: a graph that TorchScript optimised before does not pass the pass again."""
    return _generation


def status() -> dict[str, Any]:
    """What the plugin did so far: graphs, plans, hits, misses and bytes by reason."""
    return json.loads(load().status())


def planned_graph(name: str = "") -> str:
    """The text of a graph before and after planning; without a name, of the last one planned."""
    return load().planned_graph(name)


def set_option(name: str, value: str) -> None:
    """Sets an option of the plugin; the environment variable STOWAGE_NAME does the same."""
    load().set_option(name, str(value))


def _option_text(value: int | float | str) -> str:
    return f"{value:f}" if isinstance(value, float) else str(value)  # with a point, a budget is a share


def _torch_built_for(path: Path) -> str | None:
    """The torch version that CMake wrote down in build_info.py; None if there is none."""
    for folder in (path.parent, path.parent / "generated", Path(__file__).parent):
        file = folder / "build_info.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("stowage_build_info", file)
            info = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(info)
            return info.TORCH_VERSION
    return None


def _release(version: str) -> str:
    return version.partition("+")[0]
