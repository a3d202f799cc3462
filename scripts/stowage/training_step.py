# SPDX-License-Identifier: Apache-2.0
"""A whole training step (forward, backward, weight update) as one TorchScript function.

    step = stowage.capture(model, loss_fn, optimizer, example_inputs, example_targets)
    loss = step(x, y)

A step is what eager does in `loss_fn(model(x), y).backward(); optimizer.step()`, bit for bit, on the very tensors of
the model and the optimizer: both keep their true `state_dict()`. Gradients follow the user's habit: where `p.grad` is
None before the step, the gradient lives inside the step only and `p.grad` stays None, unlike in eager; where `p.grad`
holds a tensor, the step accumulates into it and updates from the sum. So `zero_grad` may be called before or after a
step, in either form.

The graph is captured anew when something that shapes it changes: the batch's shapes, train or eval, a frozen layer, a
parameter group. Numbers such as the learning rate are inputs of the graph.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator

import torch
from torch.utils._pytree import tree_flatten

from . import optimizers, plugin, tracing
from .effects import has_hooks
from .errors import CaptureError, explain
from .program import Program, Update, compile_step

#: Distinct graphs that one step keeps. TorchScript needs about a second for each; a batch shape that comes after these
#: runs as plain eager.
MAX_GRAPHS = 16

aten = torch.ops.aten
_PLAIN = {bool, int, float, str}
_AUTOCAST_KINDS = ("cpu", "cuda")
#: Settings of torch.backends that decide which op a composite one becomes.
_BACKENDS = (
    torch._C._get_cudnn_enabled,
    torch._C._get_mkldnn_enabled,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_deterministic_algorithms,
)
_RECORDED = CaptureError(
    "a CUDA graph is being recorded, which would repeat this step's learning rate and step count", "record none"
)


def capture(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    example_inputs: torch.Tensor | tuple,
    example_targets: Any,
    *,
    strict: bool = False,
) -> Step:
    """Captures the training step `loss_fn(model(*inputs), targets)` with `optimizer` (SGD, Adam or AdamW).

    Nothing is run and nothing changes: no random number is drawn, no state or gradient is made. What cannot be captured
    is said in one warning, and the returned step trains as plain eager; with `strict` it raises CaptureError instead.
    """
    if not isinstance(model, torch.nn.Module):
        name = getattr(model, "__name__", model)
        raise TypeError(f"cannot capture '{name}': it is no torch.nn.Module; pass a module")
    step = Step(model, loss_fn, optimizer, strict)
    step._program(_Now(step._whole, optimizer, example_inputs, example_targets))
    return step


class _Now:
    """The tensors of a step that is about to run, and a key of all that shapes its graph."""

    def __init__(self, whole: tracing.Whole, optimizer: torch.optim.Optimizer, inputs: Any, targets: Any) -> None:
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self.targets = targets
        self.batch, spec = tree_flatten((self.inputs, targets))
        for tensor in self.batch:
            if not isinstance(tensor, torch.Tensor):
                name, found = type(whole.model).__name__, type(tensor).__name__
                raise TypeError(
                    f"cannot capture '{name}': inputs and targets must be tensors, found '{found}'; pass tensors"
                )
        self.params: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []
        modules = self._walk(whole)
        slots = {id(param): slot for slot, param in enumerate(self.params)}
        groups = []
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in slots:  # known to the optimizer alone
                    slots[id(param)] = len(self.params)
                    self.params.append(param)
            groups.append(tuple(slots[id(param)] for param in group["params"]))
        self.groups = groups
        self.key = (
            spec,
            tuple(map(_layout, self.batch)),
            tuple(modules),
            tuple((_layout(param), param.requires_grad, param.grad is not None) for param in self.params),
            tuple(map(_layout, self.buffers)),
            tuple(groups),
            optimizers.options(optimizer),
            tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_KINDS),
            tuple(setting() for setting in _BACKENDS),
            tuple(torch._C._get_sdp_priority_order()),
        )

    def _walk(self, whole: tracing.Whole) -> list:
        """Gathers parameters and buffers in the order of `named_parameters`, and what is plain in each module: its mode
        and its numbers, which a trace turns into constants."""
        key: list = []
        seen: dict[int, int] = {}
        stack: list[torch.nn.Module] = [whole]
        while stack:
            module = stack.pop()
            if id(module) in seen:
                continue
            seen[id(module)] = len(seen)
            state = module.__dict__
            key.append(id(module))
            key.append(has_hooks(module))
            key.extend([value for value in state.values() if type(value) in _PLAIN])
            for found, held in ((state["_parameters"], self.params), (state["_buffers"], self.buffers)):
                for name, tensor in found.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in seen:
                        seen[id(tensor)] = len(seen)
                        held.append(tensor)
                    key.append((name, seen[id(tensor)]))  # tells which tensors are tied
            stack.extend(child for child in reversed(state["_modules"].values()) if child is not None)
        return key


class Step:
    """A callable training step: `loss = step(inputs, targets)` returns the detached loss."""

    def __init__(
        self, model: torch.nn.Module, loss_fn: Callable, optimizer: torch.optim.Optimizer, strict: bool
    ) -> None:
        self.model = model
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.strict = strict
        #: Whether the last step, captured or run, is a captured one.
        self.captured = False
        self._whole = tracing.Whole(model, loss_fn)
        self._traces: dict[Any, tracing.Trace | None] = {}
        self._programs: dict[Any, Program | None] = {}
        self._said: set[str] = set()

    def __call__(self, inputs: Any, targets: Any) -> torch.Tensor:
        now = _Now(self._whole, self.optimizer, inputs, targets)
        if _records_cuda_graph():
            self.captured = False
            self._refuse(_RECORDED, _RECORDED)
            return self._run_eager(now)
        program, updates, scalars = self._program(now)
        return self._run_eager(now) if program is None else self._run(now, program, updates, scalars)

    @property
    def graphs(self) -> list[torch.jit.ScriptFunction]:
        """The TorchScript functions captured so far."""
        return [program.function for program in self._programs.values() if program is not None]

    # --- capturing ---------------------------------------------------------------------------------------------------

    def _program(self, now: _Now) -> tuple[Program | None, list[Update], list[dict[str, float]]]:
        """The captured step for `now`, made if it is new, its updates and scalars; None if it cannot be captured."""
        self.captured = False
        trace = self._once(self._traces, now.key, lambda: self._trace(now))
        if trace is None:
            return None, [], []
        updates, scalars = self._updates(now, trace)
        rule = optimizers.rule_of(self.optimizer)
        branches = tuple(rule.branches(group) for group in self.optimizer.param_groups)
        key = (now.key, branches, tuple(update.bucket for update in updates), plugin.generation())
        label = type(self.model).__name__ if plugin.loaded() else ""
        program = self._once(
            self._programs, key, lambda: compile_step(trace, now.params, rule, updates, scalars, label)
        )
        self.captured = program is not None
        return program, updates, scalars

    def _once(self, cache: dict, key: Any, make: Callable[[], Any]) -> Any:
        """What `cache` holds for `key`, made at the first time; None where it cannot be made."""
        if key not in cache:
            try:
                if len(cache) >= MAX_GRAPHS:
                    cause = f"it met more than {MAX_GRAPHS} different structures"
                    raise CaptureError(cause, "pad batches to fewer shapes")
                cache[key] = make()
            except Exception as error:  # whatever a model may raise: training goes on
                self._refuse(explain(error), error)
                if len(cache) >= MAX_GRAPHS:
                    return None
                cache[key] = None
        return cache[key]

    def _refuse(self, reason: CaptureError, error: Exception) -> None:
        text = f"cannot capture '{type(self.model).__name__}': {reason}"
        if self.strict:
            raise CaptureError(text.removesuffix(f"; {reason.fix}"), reason.fix) from error
        if text not in self._said:
            self._said.add(text)
            warnings.warn(f"stowage: {text}, or go on as it runs now: unplanned", stacklevel=5)

    def _trace(self, now: _Now) -> tracing.Trace:
        refusal = optimizers.refusal(self.optimizer)
        if refusal is not None:
            raise CaptureError(*refusal)
        params = dict(self._whole.named_parameters())
        for index, param in enumerate(now.params[len(params) :]):
            params[f"optimizer_{index}"] = param
        return tracing.trace(self._whole, now.inputs, now.targets, params, dict(self._whole.named_buffers()))

    def _updates(self, now: _Now, trace: tracing.Trace) -> tuple[list[Update], list[dict[str, float]]]:
        """The updates of this step in eager's order, and a set of scalars for each bucket."""
        rule = optimizers.rule_of(self.optimizer)
        updates: list[Update] = []
        numbers: dict[tuple, int] = {}
        scalars: list[dict[str, float]] = []
        for index, (slots, group) in enumerate(zip(now.groups, self.optimizer.param_groups)):
            for slot in slots:
                param = now.params[slot]
                if trace.grads[slot] is None and param.grad is None:
                    continue
                bucket = rule.bucket(self.optimizer.state.get(param, {}), group)
                number = numbers.setdefault((index, bucket), len(numbers))
                if number == len(scalars):
                    scalars.append(rule.scalars(group, bucket))
                updates.append(Update(slot, group, number))
        return updates, scalars

    # --- running -----------------------------------------------------------------------------------------------------

    def _run(self, now: _Now, program: Program, updates: list[Update], scalars: list[dict[str, float]]) -> torch.Tensor:
        rule = optimizers.rule_of(self.optimizer)
        known = self.optimizer.state
        states = [dict(known.get(now.params[update.slot], {})) for update in updates]
        for update, state in zip(updates, states):
            state.update(rule.new_state(now.params[update.slot], state, update.group))
        values = [tensor.detach() for tensor in (*now.batch, *now.params, *now.buffers)]
        values += program.constants
        values += [param.grad for param in now.params]
        values += [state[name] for update, state in zip(updates, states) for name in rule.tensors(update.group)]
        values += [float(number) for group in scalars for number in group.values()]
        with _no_autocast():
            loss = program.run(values)
        for update, state in zip(updates, states):  # only now: a step that raises makes no state
            if state:
                known[now.params[update.slot]].update(state)
        rule.advance(states)
        self.optimizer._opt_called = True  # a learning-rate scheduler asks for it
        return loss

    def _run_eager(self, now: _Now) -> torch.Tensor:
        """The same step as eager runs it, with the same rule for gradients."""
        absent = [param for param in now.params if param.grad is None]
        try:
            with torch.enable_grad():
                loss = self.loss_fn(self.model(*now.inputs), now.targets)
                loss.backward()
            self.optimizer.step()
        finally:
            for param in absent:
                param.grad = None
        return loss.detach()


def _layout(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@contextmanager
def _no_autocast() -> Iterator[None]:
    """The graph holds autocast's casts already."""
    with ExitStack() as modes:
        for kind in _AUTOCAST_KINDS:
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


def _records_cuda_graph() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
