# SPDX-License-Identifier: Apache-2.0
"""Seeded steps in the format stowage-step/1 for the tests, the same for the same seed on any machine. No op is of a
pointwise kind: the reuse candidates are those written down."""

from random import Random

from support.step_writer import StepWriter


def random_step(seed: int, op_count: int, with_reuse: bool) -> dict:
    """Any shape at all: workspace, writes in place, views, outputs, persistent and external tensors."""
    random = Random(seed)
    writer = StepWriter(f"random {seed} of {op_count}")
    tensors = writer.step["tensors"]
    # Few sizes make many ties and many candidates for reuse, many sizes few.
    sizes = random.choice([[1, 2, 4], [0, 1, 3, 7, 20], list(range(30))])
    weights = [writer.tensor(random.choice(sizes), persistent=True) for _ in range(2)]
    usable: list[int] = []
    for op in range(op_count):
        reads = random.sample(usable, min(len(usable), random.choice([0, 1, 1, 2, 3])))
        reads += random.sample(weights, random.choice([0, 0, 1]))
        writes = random.sample(usable + weights, min(len(usable) + 2, random.choice([0, 0, 0, 0, 1])))
        fields: dict[str, object] = {}
        if op > 0 and random.random() < 0.1:
            fields["after"] = [random.randrange(op)]
        makes = [writer.tensor(random.choice(sizes), alignment_bytes=1, output=random.random() < 0.1,
                               external=random.random() < 0.05) for _ in range(random.choice([0, 1, 1, 1, 2]))]
        if with_reuse and makes and random.random() < 0.7:
            reuses = choose_reuses(random, tensors, [tensor for tensor in reads if tensor not in writes], makes[-1])
            fields |= {"reuses": reuses} if reuses else {}
        allocates = list(makes)
        if random.random() < 0.3:
            workspace = writer.tensor(random.choice(sizes), alignment_bytes=1)
            position = random.randrange(len(allocates) + 1)
            allocates.insert(position, workspace)
            events = [{"allocate": tensor} for tensor in allocates]
            events.insert(random.randrange(position + 1, len(events) + 1), {"free": workspace})
            fields["events"] = events
        writer.op(f"op_{op}", "test", reads, allocates, writes, **fields)
        usable += makes
    return writer.step


def choose_reuses(random: Random, tensors: list[dict], only_read: list[int], output: int) -> list[dict]:
    own = [tensor for tensor in only_read
           if not tensors[tensor]["persistent"] and not tensors[tensor]["output"] and not tensors[tensor]["external"]]
    if not own or tensors[output]["external"]:
        return []
    tensors[output]["size_bytes"] = tensors[random.choice(own)]["size_bytes"]
    return [{"output": output, "input": tensor} for tensor in own
            if tensors[tensor]["size_bytes"] == tensors[output]["size_bytes"]]


def training_step(seed: int, most_ops: int) -> dict:
    """The shape of a training step: a chain of layers with branches that join again, backward in the opposite order
    with a gradient for each weight, and updates that may run at any time after. It ends after `most_ops`, as if the
    first layers were frozen."""
    random = Random(seed)
    writer = StepWriter(f"training {seed} of {most_ops}")
    tensors = writer.step["tensors"]

    def size() -> int:
        return random.choice([2, 3, 4, 6, 8, 12, 16, 24, 40])

    def make(name: str, reads: list[int], size_bytes: int, reusable: int | None = None) -> int:
        output = writer.tensor(size_bytes, alignment_bytes=1)
        fields: dict[str, object] = {}
        is_same = reusable is not None and tensors[reusable]["size_bytes"] == size_bytes
        if is_same and not tensors[reusable]["persistent"]:
            fields["reuses"] = [{"output": output, "input": reusable}]
        allocates = [output]
        if random.random() < 0.25:
            workspace = writer.tensor(size(), alignment_bytes=1)
            allocates = [workspace, output]
            fields["events"] = [{"allocate": workspace}, {"allocate": output}, {"free": workspace}]
        writer.op(name, "test", reads, allocates, **fields)
        return output

    value = writer.tensor(size(), persistent=True)
    layers: list[tuple[str, int, int, int]] = []
    skipped: int | None = None
    for layer in range(most_ops // 5 + 1):
        weight = writer.tensor(size(), persistent=True)
        entered = value
        value = make(f"linear_{layer}", [value, weight], size())
        layers.append(("linear", entered, weight, value))
        if random.random() < 0.5:
            entered, value = value, make(f"relu_{layer}", [value], tensors[value]["size_bytes"], value)
            layers.append(("relu", entered, value, value))
        if skipped is not None and random.random() < 0.5:
            value = make(f"join_{layer}", [value, skipped], tensors[value]["size_bytes"], value)
        skipped = value if random.random() < 0.5 else skipped
    gradient = make("loss", [value], tensors[value]["size_bytes"], value)
    for kind, entered, helper, left in reversed(layers):
        if kind == "relu":
            gradient = make("relu_back", [gradient, left], tensors[left]["size_bytes"], gradient)
            continue
        weight_gradient = make("weight_grad", [gradient, entered], tensors[helper]["size_bytes"])
        if random.random() < 0.3:
            momentum = writer.tensor(tensors[helper]["size_bytes"], persistent=True)
            weight_gradient = make("momentum", [weight_gradient, momentum], tensors[helper]["size_bytes"],
                                   weight_gradient)
        gradient = make("input_grad", [gradient, helper], tensors[entered]["size_bytes"])
        writer.op("update", "test", [weight_gradient], [], [helper])
    return cut(writer.step, most_ops)


def cut(step: dict, most_ops: int) -> dict:
    """The first ops of a step, and what they use."""
    ops = step["ops"][:most_ops]
    allocated = {tensor for op in ops for tensor in op["allocates"]}
    kept = [tensor for tensor in step["tensors"] if tensor["persistent"] or tensor["id"] in allocated]
    new_id = {tensor["id"]: index for index, tensor in enumerate(kept)}

    def rename(value: object) -> object:
        if isinstance(value, list):
            return [rename(item) for item in value]
        return {key: new_id[item] for key, item in value.items()} if isinstance(value, dict) else new_id[value]

    tensor_fields = ("reads", "writes", "allocates", "events", "reuses")
    return {**step, "tensors": [{**tensor, "id": new_id[tensor["id"]]} for tensor in kept],
            "ops": [{key: rename(value) if key in tensor_fields else value for key, value in op.items()} for op in ops]}
