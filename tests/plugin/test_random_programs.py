# SPDX-License-Identifier: Apache-2.0
"""Small programs from a seeded generator, planned against unplanned. In all of them results take their input's memory."""

import random

import pytest
import torch
from planning import assert_same

SIZE = 24
#: All keep values small, since one NaN looks like another.
POINTWISE = ("torch.sin({0})", "torch.exp(-torch.abs({0}))", "torch.tanh({0} + {1})", "torch.sigmoid({0}) * {1}",
             "torch.relu({0}) - 0.5", "torch.where({0} > 0, {0}, {1})", "torch.clamp({0} * {0}, -1, 2.0)",
             "torch.maximum({0}, {1} * 0.5)", "torch.lerp({0}, {1}, 0.25)", "torch.addcmul({0}, {1}, {1}, value=0.1).cos()",
             "({0} / ({1}.abs() + 1)).neg()", "{0} * {1}.sum(0).tanh()", "{0}[0] * torch.sigmoid({1})",
             "torch.minimum({0}, {1}[:, :1])", "({0}.double() * 0.3).sin().float()", "torch.where({0} > {1}, 0.5, {1})",
             "({0} > 0) & ({1} < 1)", "torch.sqrt(torch.abs({0}))", "torch.pow(torch.sigmoid({0}), {1}.tanh())")
OTHERS = ("torch.mm({0}, {1}).tanh()", "torch.softmax({0}, 1)", "torch.cat([{0}, {1}])[:24]", "torch.cat([{0}, {1}])[24:].clone()",
          "torch.cumsum({0}, 0).sin()")
VIEWS = ("{0}.t()", "{0}.reshape(12, 48).view(24, 24)", "{0}[::2].repeat(2, 1)", "{0}.unsqueeze(0).squeeze(0)",
         "{0}[3:4].expand(24, 24)", "{0}.contiguous()", "{0}.detach()", "{0}.flip(1)", "{0}.reshape(-1).view(24, 24)",
         "torch.stack(torch.chunk({0}, 2)).view(24, 24)", "{0}.t().contiguous()")
DRAWS = ("torch.dropout({0}, 0.3, True)", "torch.rand_like({0})", "torch.bernoulli(torch.sigmoid({0}))")
WRITES = ("{0}.add_({1})", "{0}.mul_(0.5)", "{0}[2:5].copy_({1}[2:5])", "{0}.reshape(-1)[:100].neg_()",
          "{0}.t().add_({1} * 0.1)", "{0}.clamp_(-1, 1)")


def program(seed: int) -> str:
    choose = random.Random(seed)
    lines = ["def step(x, y, flag: int):", "    v0 = x.sin().contiguous()", "    v1 = y * 2"]
    values, fresh = ["v0", "v1", "x", "y"], ["v0", "v1", "x"]  # fresh ones may be written
    unused = ["v0", "v1"]

    def pick() -> str:
        """Mostly a value that dies with this use."""
        value = choose.choice(unused[-3:] if unused and choose.random() < 0.7 else values)
        if value in unused:
            unused.remove(value)
        return value

    for number in range(2, choose.randint(12, 30)):
        name = f"v{number}"
        picked = [pick(), pick()]
        kind = choose.random()
        if kind < 0.1:
            target = choose.choice(fresh)
            if target != picked[1]:
                lines.append("    " + choose.choice(WRITES).format(target, picked[1]))
            unused += [value for value in picked if value not in unused]
            continue
        if kind < 0.17:
            lines += [f"    {name} = {picked[0]}", "    if flag > 1:",
                      f"        {name} = {choose.choice(DRAWS).format(picked[0])}", "    else:",
                      f"        {name} = {choose.choice(POINTWISE[:-3]).format(*picked)}"]
        elif kind < 0.22:
            lines.append(f"    {name} = {choose.choice(DRAWS).format(picked[0])}")
        elif kind < 0.35:
            lines.append(f"    {name} = {choose.choice(VIEWS).format(picked[0])}")
        else:
            how = choose.choice(OTHERS if kind < 0.45 else POINTWISE).format(*picked)
            lines.append(f"    {name} = ({how}).float()" if "&" in how else f"    {name} = {how}")
            fresh.append(name)
        values.append(name)
        unused.append(name)
    kept = choose.sample(values, choose.randint(1, 3)) + [values[-1]]
    lines.append("    return " + ", ".join([*kept, " + ".join(f"{value}.sum()" for value in unused)]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(60))
def test_planned_equals_unplanned(seed):
    source = program(seed)
    print(f"seed {seed}\n{source}")
    make_inputs = lambda: (torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), seed % 4)
    phase = assert_same(source, make_inputs, keep=seed % 2 == 0)
    assert phase["last"]["reused"]["allocations"] > 0
