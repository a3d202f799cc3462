# SPDX-License-Identifier: Apache-2.0
"""What PyTorch offers around a training loop works in planned loops, and changes no bit."""

import pytest
import torch
from loops.modes import TURNS, Mode, Seen, assert_same, batch, everything, net, sgd
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

def test_autocast(mode):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        optimizer, seen = sgd(model), Seen(model)
        for turn in range(TURNS):
            x, y = batch(turn)
            with mode.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    output = model(x)
                    loss = cross_entropy(output.float(), y)
                loss.backward()
                optimizer.step()
            assert output.dtype == torch.bfloat16
            seen.add(output, loss, everything(model, optimizer))
        return seen

    assert_same(mode, train)


def test_gradient_scaler_that_meets_an_infinite_gradient(mode):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        optimizer, seen, scales = sgd(model), Seen(model), []
        for turn in range(TURNS):
            x, y = batch(turn)
            with mode.step():
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y) * (float("inf") if turn == 9 else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            scales.append(scaler.get_scale())
            seen.add(loss, scales[-1], everything(model, optimizer))
        assert max(scales) > 64 and scales[9] < scales[8]
        return seen

    assert_same(mode, train)


@pytest.mark.parametrize("foreach", [False, True])
def test_gradient_clipping(mode, foreach):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        optimizer, seen = sgd(model), Seen(model)
        for turn in range(TURNS):
            x, y = batch(turn)
            with mode.step():
                optimizer.zero_grad(set_to_none=turn % 3 > 0)
                cross_entropy(model(x), y).backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
                optimizer.step()
            assert norm > 0.5
            seen.add(norm, everything(model, optimizer))
        return seen

    assert_same(mode, train)


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["hooks", "reentrant"])
def test_checkpointing(mode, use_reentrant):
    def call(mode: Mode, turn: int, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if use_reentrant or not mode.is_scripted:
            return checkpoint(block, x, use_reentrant=use_reentrant)
        # Without stowage, too, TorchScript saves other tensors in its first calls than later on, and makes an error of
        # the exception by which a recomputation stops early.
        return block(x) if turn < 3 else checkpoint(block, x, use_reentrant=False, early_stop=False)

    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        first, blocks, head = nn.Linear(20, 20), nn.ModuleList([net(mode), net(mode)]), nn.Linear(10, 10)
        widen = nn.Linear(10, 20)
        model = nn.ModuleList([first, blocks, head, widen])
        optimizer, seen = sgd(model), Seen(model)
        for turn in range(TURNS):
            x, y = batch(turn)
            with mode.step():
                optimizer.zero_grad()
                hidden = first(x)
                hidden = widen(call(mode, turn, blocks[0], hidden))
                hidden = call(mode, turn, blocks[1], hidden)
                loss = cross_entropy(head(hidden), y)
                loss.backward()
                optimizer.step()
            seen.add(loss, everything(model, optimizer))
        return seen

    assert_same(mode, train)


SCHEDULES = {
    "one_cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=TURNS),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    "warm_up": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
                    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TURNS)], [4]),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(mode, schedule):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        optimizer, seen, rates = sgd(model), Seen(model), set()
        scheduler = SCHEDULES[schedule](optimizer)
        for turn in range(TURNS):
            x, y = batch(turn)
            with mode.step():
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                scheduler.step(*([loss.item()] if schedule == "plateau" else []))
            rates.add(scheduler.get_last_lr()[0])
            seen.add(loss, everything(model, optimizer))
        assert len(rates) > 1
        return seen

    assert_same(mode, train)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_closures(mode, line_search):
    """A closure runs several times in one step, with a line search as often as the numbers ask for."""

    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=2, tolerance_grad=0.0,
                                      tolerance_change=0.0, line_search_fn=line_search)
        seen, x, y = Seen(model), *batch(0)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        for turn in range(TURNS):
            torch.manual_seed(turn)
            with mode.step():
                loss = optimizer.step(closure)
            seen.add(loss, everything(model, optimizer))
        return seen

    # Steps of a line search may never be alike.
    assert_same(mode, train, min_hits=150 if mode.is_scripted or line_search is None else 0)


@pytest.mark.parametrize("average", ["mean", "exponential"])
def test_averaged_parameters(mode, average):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        swa = torch.optim.swa_utils
        told = {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.9)} if average == "exponential" else {}
        averaged = swa.AveragedModel(model, use_buffers=True, **told)
        optimizer, seen = sgd(model), Seen(model, averaged)
        for turn in range(TURNS):
            x, y = batch(turn)
            with mode.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                averaged.update_parameters(model)
            averaged.eval()
            with mode.step(), torch.no_grad():
                output = averaged(x)
            seen.add(output, averaged.state_dict(), everything(model, optimizer))
        return seen

    assert_same(mode, train)
