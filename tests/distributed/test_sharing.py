# SPDX-License-Identifier: Apache-2.0
"""Rank 0's plans reach the other ranks through a store; nobody waits for them, and a store that fails stops nobody."""

import subprocess
import sys

import pytest
import torch.distributed as dist
from stowage import sharing
from stowage.sharing import PATIENCE, PlanSharing, plan_sharing
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend "fake")

SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class Steps:
    """The plugin's ops, on phases of which each step tells whether one is to be planned."""

    def __init__(self, *digests, refuses=(), cannot_plan=()):
        self.digests = list(digests)
        self.refuses, self.cannot_plan = refuses, cannot_plan
        self.made, self.adopted, self.options = [], [], {}
        self.completions = []

    def end_step(self, complete):
        self.completions.append(complete)
        return self.digests.pop(0) if self.digests else ""

    def plan_step(self, digest):
        self.made.append(digest)

    def step_plan(self, digest):
        assert digest in self.made
        return "" if digest in self.cannot_plan else f"plan of {digest}"

    def adopt_step_plan(self, text):
        if text in self.refuses:
            return "it breaks a rule"
        self.adopted.append(text)
        return ""

    def set_option(self, name, value):
        self.options[name] = value


class Broken:
    """A store of which every call fails, as those of a rank that died do."""

    def __getattr__(self, name):
        def fail(*_):
            raise dist.DistNetworkError("failed to recv, got 0 bytes\nException raised from recvBytes")

        return fail


TOLD = ("stowage: cannot share plans through the process group's store: failed to recv, got 0 bytes; "
        "this rank plans by itself\n")


@pytest.fixture(params=["hash", "file"])
def store(request, tmp_path):
    return dist.HashStore() if request.param == "hash" else dist.FileStore(str(tmp_path / "store"), 2)


def end_steps(side: PlanSharing, steps: int = 1) -> None:
    for _ in range(steps):
        side.end_step(True)


def counts(side: PlanSharing) -> dict:
    return {"published": side.published, "adopted": side.adopted, "alone": side.alone}


def test_rank_0_plans_at_once_and_the_other_adopts_in_the_same_step(store):
    first, second = Steps("a", "", "b"), Steps("a", "", "b")
    rank_0, rank_1 = PlanSharing(first, store, 0), PlanSharing(second, store, 1)
    for _ in range(3):
        end_steps(rank_0)
        end_steps(rank_1)
    assert (first.made, second.made) == (["a", "b"], [])
    assert second.adopted == ["plan of a", "plan of b"]
    assert counts(rank_0) == {"published": 2, "adopted": 0, "alone": 0}
    assert counts(rank_1) == {"published": 0, "adopted": 2, "alone": 0}


@pytest.mark.parametrize("late_by", range(PATIENCE + 2))
def test_a_rank_goes_on_unplanned_for_some_steps_and_then_plans_alone(store, late_by):
    ops = Steps("a")
    rank_0, rank_1 = PlanSharing(Steps("a"), store, 0), PlanSharing(ops, store, 1)
    end_steps(rank_1, late_by)
    assert ops.made == (["a"] if late_by == PATIENCE + 1 else [])
    end_steps(rank_0)
    end_steps(rank_1, 3)
    assert (ops.made, ops.adopted) == ((["a"], []) if late_by == PATIENCE + 1 else ([], ["plan of a"]))


def test_a_phase_that_is_met_again_meanwhile_is_not_waited_for_anew(store):
    ops = Steps(*["a"] * (PATIENCE + 1))
    end_steps(PlanSharing(ops, store, 1), PATIENCE + 1)
    assert ops.made == ["a"]


def test_phases_are_waited_for_each_in_its_own_time(store):
    ops = Steps("a", "", "b")
    rank_1 = PlanSharing(ops, store, 1)
    end_steps(rank_1, PATIENCE)
    PlanSharing(Steps("b"), store, 0).end_step(True)
    end_steps(rank_1)
    assert (ops.made, ops.adopted) == (["a"], ["plan of b"])


def test_a_plan_that_this_rank_cannot_use_is_made_anew(store):
    ops = Steps("a", refuses=["plan of a"])
    end_steps(PlanSharing(Steps("a"), store, 0))
    rank_1 = PlanSharing(ops, store, 1)
    end_steps(rank_1, 5)
    assert (ops.made, ops.adopted) == (["a"], [])
    assert counts(rank_1) == {"published": 0, "adopted": 0, "alone": 1}


def test_nobody_waits_for_a_plan_that_rank_0_could_not_make(store):
    ops = Steps("a")
    end_steps(PlanSharing(Steps("a", cannot_plan=["a"]), store, 0))
    end_steps(PlanSharing(ops, store, 1))
    assert (ops.made, ops.adopted) == (["a"], [])


def test_each_step_ends_as_it_did(store):
    for rank in (0, 1):
        ops = Steps()
        side = PlanSharing(ops, store, rank)
        for complete in (True, False, True):
            side.end_step(complete)
        assert ops.completions == [True, False, True]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_fails_is_told_once_and_not_asked_again(capsys, rank):
    ops = Steps("a", "b", "", "c")
    side = PlanSharing(ops, Broken(), rank)
    end_steps(side, 5)
    assert ops.made == ["a", "b", "c"]
    assert counts(side) == {"published": 0, "adopted": 0, "alone": 3}
    assert capsys.readouterr().err == TOLD


def test_a_store_that_fails_between_check_and_get(capsys):
    class Vanishing(Broken):
        def check(self, keys):
            assert keys == ["stowage/a"]
            return True

    ops = Steps("a")
    end_steps(PlanSharing(ops, Vanishing(), 1), 2)
    assert ops.made == ["a"]
    assert capsys.readouterr().err == TOLD


def test_a_rank_that_waits_plans_alone_when_the_process_of_the_store_is_killed(capsys):
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False)
        ops = Steps("a", "b", "c")
        rank_1 = PlanSharing(ops, store, 1)
        end_steps(rank_1)
        assert ops.made == []
    finally:
        server.kill()
        server.communicate()
    end_steps(rank_1)
    assert ops.made == ["a", "b"]
    end_steps(rank_1, 5)
    assert ops.made == ["a", "b", "c"]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("stowage: cannot share plans through the process group's store: ")


def test_closing_plans_what_is_waited_for(store):
    ops = Steps("a", "b")
    rank_1 = PlanSharing(ops, store, 1)
    end_steps(rank_1)
    rank_1.close()
    assert ops.made == ["a"]
    end_steps(rank_1)
    assert ops.made == ["a", "b"]


@pytest.fixture
def no_group(monkeypatch):
    monkeypatch.setattr(sharing, "_current", None)
    monkeypatch.setattr(sharing, "_group", None)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_without_another_rank_nothing_is_shared(no_group, tmp_path):
    ops = Steps()
    assert plan_sharing(ops) is None
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    assert plan_sharing(ops) is None
    assert ops.options == {"share_plans": "0"}


def test_a_process_group_shares_until_it_is_destroyed(no_group):
    ops = Steps("a")
    group_store = dist.HashStore()
    dist.init_process_group("fake", store=group_store, rank=1, world_size=2)
    side = plan_sharing(ops)
    assert plan_sharing(ops) is side
    assert ops.options == {"share_plans": "1"}
    side.end_step(True)
    assert ops.made == []
    dist.destroy_process_group()
    assert plan_sharing(ops) is None
    assert ops.options == {"share_plans": "0"}
    assert ops.made == ["a"]  # as nobody would plan it later


def test_a_process_group_whose_store_has_no_other_client(no_group, capsys):
    class Single(dist.Store):
        def set(self, key, value):
            pass

    dist.init_process_group("fake", store=Single(), rank=0, world_size=2)
    ops = Steps()
    assert plan_sharing(ops) is None
    assert ops.options == {"share_plans": "0"}
    assert capsys.readouterr().err.startswith("stowage: cannot share plans through the process group's store: ")
