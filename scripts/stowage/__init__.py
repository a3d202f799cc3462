# SPDX-License-Identifier: Apache-2.0
"""Plans the memory of a PyTorch training step.

torch is imported at the first call that needs it, so that the command line reads a store where no torch is installed.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "CaptureError": "errors",
    "capture": "training_step",
    "disable": "plugin",
    "enable": "plugin",
    "mark_step": "stepping",
    "planned_graph": "plugin",
    "report": "reporting",
    "set_option": "plugin",
    "status": "plugin",
    "step": "stepping",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stowage' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
