# SPDX-License-Identifier: Apache-2.0
"""What is saved of a planned loop, and loaded into one, is what an unplanned one saves."""

import io

import torch
from loops.modes import TURNS, Mode, Seen, assert_same, batch, everything, net, sgd
from torch import nn
from torch.nn.functional import cross_entropy
from twins import digest

SCRIPTED = Mode("scripted", is_scripted=True)


def saved(save, value) -> bytes:
    file = io.BytesIO()
    save(value, file)
    return file.getvalue()


def train_turns(mode: Mode, model: nn.Module, optimizer: torch.optim.Optimizer, turns, seen: Seen) -> None:
    for turn in turns:
        x, y = batch(turn)
        with mode.step():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        seen.add(loss, everything(model, optimizer))


def infer(mode: Mode, model: nn.Module, seen: Seen) -> None:
    for turn in range(TURNS):
        x, _ = batch(turn)
        with mode.step(), torch.no_grad():
            output = model(x)
        seen.add(output)


def test_state_is_saved_in_mid_training_and_loaded_into_the_same_and_a_new_model(mode):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode)
        optimizer, seen = sgd(model), Seen(model)
        train_turns(mode, model, optimizer, range(8), seen)
        file = saved(torch.save, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        train_turns(mode, model, optimizer, range(8, 12), seen)
        once = seen[-4:]

        state = torch.load(io.BytesIO(file))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train_turns(mode, model, optimizer, range(8, 12), seen)
        assert seen[-4:] == once

        other = net(mode)
        optimizer = sgd(other)
        other.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train_turns(mode, other, optimizer, range(8, 20), seen)
        seen.append(file)
        seen.held += (other,)
        return seen

    assert_same(mode, train)


def test_a_scripted_module_is_saved_before_and_after_it_is_planned(mode):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(SCRIPTED)
        optimizer, seen = sgd(model), Seen(model)
        before = saved(torch.jit.save, model)
        train_turns(mode, model, optimizer, range(TURNS), seen)
        after = saved(torch.jit.save, model)
        for file in (before, after):
            assert b"stowage" not in file
            loaded = torch.jit.load(io.BytesIO(file))
            seen.held += (loaded,)
            if file is after:
                assert digest(loaded.state_dict()) == digest(model.state_dict())
            train_turns(mode, loaded, sgd(loaded), range(TURNS), seen)
            infer(mode, loaded.eval(), seen)
        return seen

    assert_same(mode, train)


def test_a_frozen_module(mode):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(SCRIPTED)
        optimizer, seen = sgd(model), Seen(model)
        train_turns(mode, model, optimizer, range(4), seen)
        frozen = torch.jit.freeze(model.eval())
        seen.held += (frozen,)
        infer(mode, frozen, seen)
        train_turns(mode, model.train(), optimizer, range(4, TURNS), seen)  # the original trains on beside it
        infer(mode, frozen, seen)
        loaded = torch.jit.load(io.BytesIO(saved(torch.jit.save, frozen)))
        seen.held += (loaded,)
        infer(mode, loaded, seen)
        return seen

    assert_same(mode, train)


def test_a_module_optimized_for_inference():
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        model = net(mode).eval()
        frozen = torch.jit.optimize_for_inference(model)
        seen = Seen(model, frozen)
        infer(mode, frozen, seen)
        return seen

    assert_same(SCRIPTED, train)
