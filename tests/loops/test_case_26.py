# SPDX-License-Identifier: Apache-2.0
"""The peak in the optimizer's step: `stowage explain` says from one program's store what the changed program needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import stowage
import torch
from stowage import cli, peaks
from stowage.explaining.moves import FOREACH_OFF, UPDATES_IN_BACKWARD, Explanation, explain
from stowage.store import Store
from torch import nn

LAYERS, TURNS = 12, 5
WEIGHT_BYTES = 256 * 256 * 4


@dataclass(frozen=True)
class Shape:
    width: int = 256
    batch: int = 4  # so that parameters dwarf activations
    bias: bool = True


@dataclass(frozen=True)
class Measured:
    store: Path
    found: Explanation
    peak_bytes: int  # of what a step allocates, from the allocator's count of all that lives


def train(store: Path, shape: Shape, foreach: bool, in_backward: bool = False) -> Measured:
    """Trains a perceptron, its updates at the end of each step, or each as soon as its gradient is there."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(LAYERS)
                            for layer in (nn.Linear(shape.width, shape.width, shape.bias), nn.ReLU())))
    x = torch.randn(shape.batch, shape.width)
    if in_backward:
        optimizers = {parameter: torch.optim.Adam([parameter], foreach=foreach) for parameter in model.parameters()}

        def update(parameter: nn.Parameter) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(update)
    else:
        whole = torch.optim.Adam(model.parameters(), foreach=foreach)
    stowage.set_option("meter", "1")
    stowage.enable(store=str(store))
    for turn in range(TURNS):
        held = sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)
        before = stowage.status()["meter"]["live_bytes"] - held
        torch.ops.stowage.reset_peak()
        with stowage.step():
            if not in_backward:
                whole.zero_grad()
            model(x).square().mean().backward()
            if not in_backward:
                whole.step()
        if turn == 1:  # the optimizer has its state, and nothing is planned yet
            peak_bytes = stowage.status()["meter"]["peak_bytes"] - before
    stowage.disable()
    with Store(str(store)) as opened:
        run = opened.step(None)
        found = explain(*opened.recorded_step(run))
    assert found.peak.live_bytes == run["unplanned_peak_bytes"] == sum(each.size_bytes for each in found.classes)
    assert found.peak.live_bytes == pytest.approx(peak_bytes, rel=0.01)  # that counts the smallest tensors, too
    return Measured(store, found, peak_bytes)


def predicted(measured: Measured, name: str) -> peaks.Peak:
    peak = next(move.peak for move in measured.found.moves if move.name == name)
    assert peak is not None
    return peak


def why_not(measured: Measured, name: str) -> str:
    return next(move.why_not for move in measured.found.moves if move.name == name)


def assert_comes_true(prediction: peaks.Peak, measured: Measured) -> None:
    assert prediction.live_bytes == pytest.approx(measured.peak_bytes, rel=0.03)
    assert (prediction.place, prediction.optimizer) == (measured.found.peak.place, measured.found.peak.optimizer)


def explained(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What `stowage explain` prints."""
    monkeypatch.setattr("sys.argv", ["stowage", "explain", str(store)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    return capsys.readouterr().out


# Without biases all parameters are as large, so that what is kept of the one before counts in full.
@pytest.mark.parametrize("shape", [Shape(), Shape(bias=False)], ids=["biases", "no-biases"])
def test_the_optimizers_step_is_the_peak_and_the_predictions_come_true(tmp_path, shape):
    at_once = train(tmp_path / "foreach.db", shape, foreach=True)
    peak = at_once.found.peak
    assert (peak.place, peak.optimizer, peak.op.kind) == (peaks.OPTIMIZER, "Adam.step", "aten::_foreach_sqrt")
    assert {each.name: each.size_bytes for each in at_once.found.classes} == {
        peaks.GRADIENTS: at_once.found.gradient_bytes, peaks.TEMPORARIES: at_once.found.gradient_bytes}
    assert at_once.found.gradient_bytes == LAYERS * (WEIGHT_BYTES + (shape.width * 4 if shape.bias else 0))

    one_by_one = train(tmp_path / "single.db", shape, foreach=False)
    assert_comes_true(predicted(at_once, FOREACH_OFF), one_by_one)
    assert one_by_one.found.peak.place == peaks.OPTIMIZER
    assert why_not(one_by_one, FOREACH_OFF) == "the optimizer makes temporaries of one parameter at a time already"

    for before, foreach in ((at_once, True), (one_by_one, False)):
        after = train(tmp_path / f"in-backward-{foreach}.db", shape, foreach, in_backward=True)
        assert_comes_true(predicted(before, UPDATES_IN_BACKWARD), after)
        assert after.found.peak.place == peaks.UPDATE_IN_BACKWARD
        assert why_not(after, UPDATES_IN_BACKWARD) == "they run there already"


def test_the_peak_moves_to_the_backward(tmp_path):
    shape = Shape(batch=256)
    before = train(tmp_path / "foreach.db", shape, foreach=True)
    assert before.found.peak.place == peaks.OPTIMIZER
    for name, foreach, in_backward in ((FOREACH_OFF, False, False), (UPDATES_IN_BACKWARD, True, True)):
        after = train(tmp_path / f"{in_backward}.db", shape, foreach, in_backward)
        assert_comes_true(predicted(before, name), after)
        assert after.found.peak.place == peaks.BACKWARD


def test_where_activations_are_the_peak_neither_helps(tmp_path, monkeypatch, capsys):
    shape = Shape(width=64, batch=2048)
    before = train(tmp_path / "foreach.db", shape, foreach=True)
    for name, foreach, in_backward in ((FOREACH_OFF, False, False), (UPDATES_IN_BACKWARD, True, True)):
        assert predicted(before, name) == before.found.peak
        assert_comes_true(predicted(before, name), train(tmp_path / f"{in_backward}.db", shape, foreach, in_backward))
    text = explained(before.store, monkeypatch, capsys)
    assert text.startswith("The step's peak is in the backward (PowBackward0): 8.00 MiB at op ")
    assert text.count("would not help, the peak stays in the backward (PowBackward0).\n") == 2


def test_it_is_said_in_plain_words(tmp_path, monkeypatch, capsys):
    text = explained(train(tmp_path / "foreach.db", Shape(bias=False), foreach=True).store, monkeypatch, capsys)
    op = re.search(r"at op (\d+) ", text)
    assert op is not None
    assert text == f"""\
The step's peak is in the optimizer's step (Adam.step): 6.00 MiB at op {op[1]} aten::_foreach_sqrt '_foreach_sqrt.0'.
That is what the step allocates; what was there before (parameters, optimizer state, the batch) comes on top.

There live:
    size  tensors  what
3.00 MiB       12  gradients, from the backward until they are cleared; by aten::mm
3.00 MiB       12  temporaries of the optimizer; by aten::_foreach_sqrt: as large as all gradients, so as all parameters \
(param-sized intermediate)

What would move it:
- foreach=False: 3.75 MiB, 37.5 % less, still in the optimizer's step (Adam.step), beside temporaries of 768.00 KiB. \
So the optimizer makes temporaries of one parameter after another.
- updates in the backward: 560.00 KiB, 90.9 % less, then in an update within the backward (Adam.step), beside \
temporaries of 256.00 KiB. So each gradient dies with its own update (Tensor.register_post_accumulate_grad_hook).
"""
