# SPDX-License-Identifier: Apache-2.0
"""Seeded steps of few ops in which running some again saves memory, the same for the same seed on any machine."""

from random import Random

from solver.small_steps import choose_reuses
from support.step_writer import StepWriter

SHORTEST_NS = 4  # so that few repeats take as long as many would


def budget_step(seed: int, op_count: int) -> dict:
    """Forward, a loss, and backward in the opposite order, each op of which takes what a forward one took or made.
    Among them are ops that may not run again, or make two tensors, write in place, need workspace or take a view, and
    updates of what forward ops read."""
    random = Random(seed)
    writer = StepWriter(f"budget {seed} of {op_count}")
    tensors = writer.step["tensors"]

    def tensor(**fields: bool) -> int:
        return writer.tensor(random.randint(1, 16), alignment_bytes=1, external=False, **fields)

    def op(name: str, reads: list[int], allocates: list[int], writes: list[int] = [], **fields: object) -> None:
        if random.random() < 0.15:
            workspace = tensor()
            fields["events"] = [{"allocate": each} for each in [workspace, *allocates]] + [{"free": workspace}]
            allocates = [workspace, *allocates]
        writer.op(name, "test", reads, allocates, writes, duration_ns=random.randint(SHORTEST_NS, 12),
                  repeatable=random.random() < 0.85, **fields)

    value = tensor(persistent=True)
    weight = tensor(persistent=True)
    layers: list[tuple[int, ...]] = []  # what each forward op entered and made
    forward_count = (op_count - 1) // 2
    for layer in range(forward_count):
        reads = [value]
        if layers and random.random() < 0.35:
            reads.append(random.choice(made_by(layers)))
        made = [tensor() for _ in range(random.choice([1, 1, 1, 2]))]
        fields: dict[str, object] = {}
        reuses = choose_reuses(random, tensors, reads, made[-1]) if random.random() < 0.25 else []
        if reuses:
            fields["reuses"] = reuses
        if random.random() < 0.3:
            reads.append(weight)
        op(f"forward_{layer}", reads, made, **fields)
        layers.append((value, *made))
        value = made[0]
    if op_count % 2 == 0:
        if random.random() < 0.5:
            op("in_place", [], [], [random.choice(made_by(layers))])
        else:
            op("update", [value], [], [weight])
    gradient = tensor()
    op("loss", [value], [gradient, tensor(output=True)])
    for layer, ends in reversed(list(enumerate(layers))):
        taken = random.choice(ends)
        fields = {}
        if random.random() < 0.2:
            view = writer.op(f"view_{layer}", "test", [taken], [], duration_ns=0, repeatable=True)
            fields = {"after": [view], "views": [view]}
        made = [tensor(output=layer == 0)]
        op(f"backward_{layer}", [gradient, taken], made, **fields)
        gradient = made[0]
    return writer.step


def made_by(layers: list[tuple[int, ...]]) -> list[int]:
    return [made for layer in layers for made in layer[1:]]
