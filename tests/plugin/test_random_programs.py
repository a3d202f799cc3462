# SPDX-License-Identifier: Apache-2.0
"""Small programs from a seeded generator, planned against unplanned."""

import random

import pytest
import torch
from planning import assert_same

SIZE = 24
POINTWISE = ("torch.exp({0} * 0.1)", "torch.sin({0})", "{0} + {1}", "{0} * {1}", "torch.relu({0})", "torch.mm({0}, {1})",
             "torch.softmax({0}, 1)", "torch.cat([{0}, {1}])[:24]", "torch.where({0} > 0, {0}, {1})")
VIEWS = ("{0}.t()", "{0}.reshape(12, 48).view(24, 24)", "{0}[::2].repeat(2, 1)", "{0}.unsqueeze(0).squeeze(0)",
         "{0}[3:4].expand(24, 24)", "{0}.contiguous()", "{0}.detach()")
DRAWS = ("torch.dropout({0}, 0.3, True)", "torch.rand_like({0})", "torch.bernoulli(torch.sigmoid({0}))")
WRITES = ("{0}.add_(1)", "{0}.mul_(0.5)", "{0}[2:5].copy_({1}[2:5])", "{0}.reshape(-1)[:100].neg_()", "{0}.t().add_({1})")


def program(seed: int) -> str:
    choose = random.Random(seed)
    lines = ["def step(x, y, flag: int):", "    v0 = x.sin().contiguous()", "    v1 = y * 2"]
    values, fresh = ["v0", "v1", "x", "y"], ["v0", "v1", "x"]  # fresh ones may be written
    for number in range(2, choose.randint(12, 30)):
        name = f"v{number}"
        pick = [choose.choice(values[-6:]), choose.choice(values)]
        kind = choose.random()
        if kind < 0.15:
            target = choose.choice(fresh)
            if target != pick[1]:
                lines.append("    " + choose.choice(WRITES).format(target, pick[1]))
            continue
        if kind < 0.22:
            lines += [f"    {name} = {pick[0]}", "    if flag > 1:", f"        {name} = {choose.choice(DRAWS).format(pick[0])}",
                      "    else:", f"        {name} = {choose.choice(POINTWISE).format(*pick)}"]
        elif kind < 0.3:
            lines.append(f"    {name} = {choose.choice(DRAWS).format(pick[0])}")
        elif kind < 0.5:
            lines.append(f"    {name} = {choose.choice(VIEWS).format(pick[0])}")
        else:
            lines.append(f"    {name} = {choose.choice(POINTWISE).format(*pick)}")
            fresh.append(name)
        values.append(name)
    kept = choose.sample(values, choose.randint(1, 3)) + [values[-1]]
    lines.append("    return " + ", ".join([*kept, " + ".join(f"{value}.sum()" for value in values)]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(60))
def test_planned_equals_unplanned(seed):
    source = program(seed)
    print(f"seed {seed}\n{source}")
    assert_same(source, lambda: (torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), seed % 4), keep=seed % 2 == 0)
