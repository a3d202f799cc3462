# SPDX-License-Identifier: Apache-2.0
"""Every op of the list of reuse with its result on its input, on the device: the cases are those of the CPU's test."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any, NamedTuple

import stowage
import torch

from gpu.outcome import DRY, Failure, Part, Skip
from gpu.training import DEVICE, be_deterministic, differing, planned_phase

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Runs until the plan is followed, and those that follow it.
CALLS = 7
#: Seconds that an op needs at most.
NEEDS_S = 3


class Call(NamedTuple):
    """An op's arguments, the tensors that stand in them, and eager's result."""

    arguments: tuple
    site: Any
    dtype: torch.dtype
    expected: torch.Tensor


def calls_of(suite: ModuleType, name: str, dtype: torch.dtype) -> list[Call]:
    """Every site of the op that takes the dtype, with all its arguments."""
    torch.manual_seed(7)
    calls = []
    for arguments in suite.arguments_of(name, dtype):
        names = [letter for letter in (suite.A, suite.B, suite.C) if letter in arguments]
        for site in suite.sites(name, names, dtype):
            if "mask" in arguments:
                site.tensors["mask"] = torch.rand(site.tensors[suite.A].shape) > 0.5
            site = site._replace(tensors={key: tensor.to(DEVICE) for key, tensor in site.tensors.items()})
            try:
                expected = suite.call(f"aten::{name}", arguments, site)
            except (RuntimeError, NotImplementedError):
                continue  # it does not broadcast
            calls.append(Call(arguments, site, dtype, expected))
    return calls


def program(suite: ModuleType, name: str, calls: list[Call]) -> tuple[Any, list[torch.Tensor]]:
    """One graph of all calls: copies of the tensors that die in the op, the op, and a copy of its result."""
    inputs, lines = [], ["%none : NoneType = prim::Constant()"]
    for number, (arguments, site, *_) in enumerate(calls):
        names = {}
        for key, tensor in site.tensors.items():
            names[key] = f"%x{len(inputs)}"
            inputs.append(tensor)
            if key in site.fresh:
                lines.append(f"%{key}{number} : Tensor = aten::clone({names[key]}, %none)")
                names[key] = f"%{key}{number}"
        taken = []
        for position, value in enumerate(arguments):
            if isinstance(value, str) and value in names:
                taken.append(names[value])
                continue
            kind, attribute = suite.literal(value)
            taken.append(f"%k{number}_{position}")
            lines.append(f"{taken[-1]} : {kind} = prim::Constant{attribute}()")
        lines.append(f"%r{number} : Tensor = aten::{name}({', '.join(taken)})")
        lines.append(f"%o{number} : Tensor = aten::clone(%r{number}, %none)")
    lines.append(f"%all : Tensor[] = prim::ListConstruct({', '.join(f'%o{n}' for n in range(len(calls)))})")
    header = ", ".join(f"%x{number} : Tensor" for number in range(len(inputs)))
    text = "\n  ".join([f"graph({header}):", *lines, "return (%all)"])
    return torch._C._create_function_from_graph("step", torch._C.parse_ir(text)), inputs


def check(part: Part, suite: ModuleType, name: str) -> str:
    calls = [call for dtype in DTYPES for call in calls_of(suite, name, dtype)]
    stowage.enable()
    step, inputs = program(suite, name, calls)
    with torch.no_grad():
        for _ in range(CALLS):
            results = step(*inputs)
    reused = planned_phase()["last"]["reused"]["allocations"]
    possible = sum(suite.may_reuse(call.site, call.expected) for call in calls)
    if reused != possible:
        raise Failure(f"{reused} results reused memory, {possible} can")
    if part.dry:
        raise Skip(f"{DRY}: kernels do nothing, values not compared; {reused} results reused memory")
    wrong = [call for call, result in zip(calls, results, strict=True) if differing(result, call.expected) > 0]
    if wrong:
        raise Failure(f"{len(wrong)} of {len(calls)} results differ from eager's, first with {wrong[0].arguments} of "
                      f"{wrong[0].dtype}")
    return f"{len(calls)} calls equal, {reused} results reused memory"


def main() -> None:
    part = Part(float(sys.argv[1]), torch.cuda.get_device_name(DEVICE))
    be_deterministic()
    if importlib.util.find_spec("pytest") is None:
        part.attempt("pointwise ops in place", 0, no_pytest)
        return
    import test_reuse as suite

    # From the types that a profiled run shows TorchScript would fuse the ops, and nothing would be left to reuse.
    torch._C._jit_set_num_profiled_runs(0)
    # Kernels with vectors and without, and of many blocks. Few: the driver makes each tensor of a profiled run.
    suite.LAYOUTS = [((1000,), lambda x: x), ((40001,), lambda x: x), ((65, 33), lambda x: x.t()),
                     ((2, 3, 5, 7), suite.channels_last)]
    stowage.set_option("min_ops", "1")
    stowage.set_option("poison", "1")
    for name in suite.CASES:
        part.attempt(f"{name} in place", NEEDS_S, lambda: check(part, suite, name))


def no_pytest() -> str:
    raise Skip("pytest is not installed, with which tests/plugin/test_reuse.py is written")


if __name__ == "__main__":
    main()
