# SPDX-License-Identifier: Apache-2.0
"""Workers of a DataLoader that are forked while a step is open, or between steps, are in nobody's way."""

import sqlite3

import pytest
import stowage
import torch
from loops.modes import Mode, Seen, assert_same, net, sgd
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

EPOCHS = 5
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


class Waves(Dataset):
    """Items that are computed by ops whose memory the planned process has slots for."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.arange(640, dtype=torch.float32).reshape(32, 20).add(item).sin()
        for _ in range(8):
            x = (x * 1.5).cos() + x.tanh()
        return x.mean(0), torch.tensor(item % 10)


@pytest.mark.parametrize("persistent", [False, True], ids=["forked each epoch", "persistent"])
def test_workers_forked_within_a_step(mode, persistent, tmp_path):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        loader = DataLoader(Waves(), batch_size=16, shuffle=True, num_workers=2, multiprocessing_context="fork",
                            persistent_workers=persistent, timeout=60)
        model = net(mode)
        optimizer, seen = sgd(model), Seen(model)
        for _ in range(EPOCHS):
            batches = None
            for _ in range(3):
                with mode.step():
                    optimizer.zero_grad()
                    if batches is None:
                        batches = iter(loader)  # forks, while the step is open and after ops of it have run
                    x, y = next(batches)
                    loss = cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                seen.add(x, y, loss, model.state_dict())
            assert next(batches, None) is None
        return seen

    store = tmp_path / "profile.db"
    assert_same(mode, train, store=store)
    stowage.disable()
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_workers_forked_between_steps(mode):
    def train(mode: Mode) -> Seen:
        torch.manual_seed(0)
        loader = DataLoader(Waves(), batch_size=16, num_workers=2, multiprocessing_context="fork", timeout=60)
        model = net(mode)
        optimizer, seen = sgd(model), Seen(model)
        for _ in range(EPOCHS):
            for x, y in loader:
                with mode.step():
                    optimizer.zero_grad()
                    loss = cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                seen.add(x, y, loss, model.state_dict())
        return seen

    assert_same(mode, train)
