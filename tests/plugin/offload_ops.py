# SPDX-License-Identifier: Apache-2.0
"""Graphs that copy a tensor to host memory and back by hand."""

from typing import Callable

import torch
from stowage import plugin

#: `a` is copied out, given up while `b` and `c` are made, and back for the last op. It fails in between if told to.
TEXT = """graph(%x : Tensor, %fails : bool):
  %one : int = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %error : str = prim::Constant[value="the step failed"]()
  %a : Tensor = aten::exp(%x)
  %h : Capsule = stowage::offload(%a)
  %b : Tensor = aten::sin(%x)
  stowage::offloaded(%a, %h)
  %c : Tensor = aten::cos(%b)
  %y : Tensor = stowage::fetch(%h)
  %d : Tensor = aten::mul(%c, %c)
  stowage::arrive(%y, %h)
  %e : Tensor = aten::add(%y, %d, %one)
  %both : (Tensor, Tensor) = prim::TupleConstruct(%e, %y)
  return (%both)"""
RAISE = """
  prim::If(%fails)
    block0():
      prim::RaiseException(%error, %none)
      -> ()
    block1():
      -> ()"""


def step(fails_behind: str = "") -> Callable:
    """The graph as a function. It fails if told to: behind the line that begins so."""
    plugin.load()
    lines = TEXT.split("\n")
    text = "\n".join(line + (RAISE if fails_behind and line.startswith(f"  {fails_behind}") else "") for line in lines)
    return torch._C._create_function_from_graph("step", torch._C.parse_ir(text))
