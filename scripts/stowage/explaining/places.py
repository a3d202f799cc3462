# SPDX-License-Identifier: Apache-2.0
"""To which module of the model an op or a tensor belongs. Needs no torch."""

import re
from collections import defaultdict
from collections.abc import Iterable

from stowage import roles
from stowage.store import Row, Store

# What ends the name of a parameter or buffer: what comes before is its module.
_LEAF = re.compile(r"_(?:(?:in_proj_)?(?:weight|bias)(?:_[a-z]+_l\d+)?|running_(?:mean|var)|num_batches_tracked|[^_]+)$")
_MOST_GROUPS = 16


class Modules:
    """Paths such as `layer1.0.conv1`: as recorded with the ops or, where they are not, by the parameters that the ops use.

    Names of parameters have "_" for ".": `layer1_0_conv1` is what can be said without a recorded path.
    """

    def __init__(self, store: Store, run: Row, phases: roles.Phases | None) -> None:
        run_id = run["run_id"]
        ops = store.query("SELECT op, name, scope FROM ops WHERE run_id = ? ORDER BY op", run_id)
        tensors = store.query("SELECT tensor, name FROM tensors WHERE run_id = ? AND kind = 'input'", run_id)
        # An update belongs to the module whose parameter it updates.
        scopes = {op["op"]: op["scope"].removeprefix("optimizer.") for op in ops}
        self.are_recorded = any(scopes.values())
        self._paths = {path.replace(".", "_"): path for scope in set(scopes.values()) for path in _prefixes(scope)}
        params = {tensor["name"][2:] for tensor in tensors if tensor["name"].startswith("p_")} if phases else set()
        self.of_tensor = {tensor["tensor"]: self._owner(tensor["name"], params) for tensor in tensors} if phases else {}
        self.of_op: dict[int, str] = {}
        reads, makes = defaultdict(list), defaultdict(list)
        for use in store.query("SELECT op, tensor FROM uses WHERE run_id = ? AND kind = 'read' ORDER BY use", run_id):
            reads[use["op"]].append(use["tensor"])
        for made in store.query("SELECT op, tensor FROM allocations WHERE run_id = ? ORDER BY allocation", run_id):
            makes[made["op"]].append(made["tensor"])
        inputs = {tensor["tensor"] for tensor in tensors}
        for op in ops:
            read = sorted(reads[op["op"]], key=lambda tensor: tensor not in inputs)
            self.of_op[op["op"]] = scopes[op["op"]] or next(filter(None, (self.of_tensor.get(each) for each in read)), "")
            for tensor in makes[op["op"]]:
                self.of_tensor[tensor] = self.of_op[op["op"]]

    def _owner(self, name: str, params: set[str]) -> str:
        """The module of an input; "" for what belongs to none."""
        parts = name[2:].split("_")
        if name.startswith("s_"):  # the name of the state comes before that of the parameter
            params_in_it = ["_".join(parts[begin:]) for begin in range(1, len(parts))]
            name = f"p_{next((param for param in params_in_it if param in params), '')}"
            parts = name[2:].split("_")
        if not name.startswith(("p_", "b_", "g_")):
            return ""
        for count in range(len(parts) - 1, 0, -1):
            path = self._paths.get("_".join(parts[:count]))
            if path is not None:
                return path
        return _LEAF.sub("", name[2:]) if "_" in name[2:] else ""


def shorten(paths: Iterable[str]) -> dict[str, str]:
    """By path: its first levels, as many as leave few enough different ones."""
    paths = set(paths)
    separator = "." if any("." in path for path in paths) else "_"
    for levels in (3, 2, 1):
        found = {path: separator.join(path.split(separator)[:levels]) for path in paths}
        if len(set(found.values())) <= _MOST_GROUPS:
            break
    return found


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)] if path else []
