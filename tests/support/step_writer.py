# SPDX-License-Identifier: Apache-2.0


class StepWriter:
    """Collects the tensors and ops of a step in the format stowage-step/1; ids are indices."""

    def __init__(self, name: str) -> None:
        self.step = {"format": "stowage-step/1", "name": name, "tensors": [], "ops": []}

    def tensor(self, size_bytes: int, **fields: object) -> int:
        tensors = self.step["tensors"]
        tensors.append({"id": len(tensors), "size_bytes": size_bytes, "persistent": False, "output": False, **fields})
        return len(tensors) - 1

    def op(self, name: str, kind: str, reads: list[int], allocates: list[int], writes: list[int] = [],
           **fields: object) -> int:
        ops = self.step["ops"]
        ops.append({"id": len(ops), "name": name, "kind": kind, "reads": reads, "writes": writes,
                    "allocates": allocates, **fields})
        return len(ops) - 1
