# SPDX-License-Identifier: Apache-2.0
"""What is predicted of another batch size, against the same step written out for it."""

from pathlib import Path

import pytest
from cli.sample_store import change_store
from cli.written_steps import Graph, Op, write_store

from stowage import roles
from stowage.curve import Curve
from stowage.explaining.scaling import Binding, bind, find_batch
from stowage.store import Store


def graph(batch: int) -> Graph:
    """Two layers; the weights of the second (480 B) weigh more than all else at a small batch."""
    inputs = {"input_0": (4 * batch, f"[{batch}, 1]"), "p_a_weight": (60, "[15]"), "p_b_weight": (480, "[8, 15]"),
              "s_momentum_buffer_b_weight": (480, "[8, 15]")}
    return Graph(inputs, [
        # A cast of the weights is as large as they are, whatever its class.
        Op("cast", "aten::to", ("p_b_weight",), makes={"cast": 480}),
        Op("mm", "aten::mm", ("input_0", "p_a_weight"), makes={"mm": 20 * batch}, workspace=60),
        Op("relu", "aten::relu", ("mm",), makes={"relu": 20 * batch}),
        Op("mm_1", "aten::mm", ("relu", "cast"), makes={"out": 12 * batch}, workspace=31 * batch),
        Op("loss", "aten::sum", ("out",), makes={"loss": 4}),
        Op("d", "aten::sum_backward", ("loss", "out"), makes={"d": 12 * batch}),
        Op("gb", "aten::mm", ("relu", "d"), makes={"gb": 480}),
        Op("dr", "aten::mm", ("d", "cast"), makes={"dr": 20 * batch}, workspace=11 * batch),
        Op("ga", "aten::mm", ("input_0", "dr", "mm"), makes={"ga": 60}),
        Op("mul__b_weight", "aten::mul_", ("s_momentum_buffer_b_weight",), ("s_momentum_buffer_b_weight",)),
        Op("add__b_weight", "aten::add_", ("s_momentum_buffer_b_weight", "gb"), ("s_momentum_buffer_b_weight",),
           workspace=100),
        Op("add__b_weight_1", "aten::add_", ("p_b_weight", "s_momentum_buffer_b_weight"), ("p_b_weight",)),
        Op("add__a_weight", "aten::add_", ("p_a_weight", "ga"), ("p_a_weight",)),
    ], order=[0, 1, 2, 3, 4, 5, 6, 9, 10, 7, 11, 8, 12])


SHAPES = "UPDATE tensors SET shape = '[8, 15]' WHERE name IN ('cast', 'gb'); UPDATE tensors SET shape = '[15]' WHERE name = 'ga'"


def binding(path: Path, batch: int) -> Binding | None:
    path.unlink(missing_ok=True)
    write_store(path, graph(batch))
    change_store(path, SHAPES)
    with Store(str(path)) as store:
        run = store.run(1)
        phases = roles.phases_of(store, run)
        assert phases is not None
        found = find_batch(store, run, roles.classes_of(store, run), phases)
        return bind(found, Curve(store, run, False), Curve(store, run, True)) if found else None


def test_the_peak_at_another_batch_is_what_the_step_needs_there(tmp_path: Path) -> None:
    recorded = {batch: binding(tmp_path / "run.db", batch) for batch in (4, 8, 16, 32, 64)}
    peaks = {batch: next(each for each in found.sizes if each.batch == batch) for batch, found in recorded.items()}
    assert len({each.before_bytes > each.after_bytes for each in peaks.values()}) == 2  # the plan helps at some only
    for batch in (8, 16):
        for each in recorded[batch].sizes:
            assert each == peaks[each.batch], f"of {each.batch} from {batch}"


def test_where_it_turns(tmp_path: Path) -> None:
    small, large = binding(tmp_path / "run.db", 8), binding(tmp_path / "run.db", 64)
    assert (small.is_weights_bound, large.is_weights_bound) == (True, False)
    assert small.scaled_bytes + small.fixed_bytes == small.sizes[1].before_bytes
    turn = small.turn_batch
    assert turn == large.turn_batch
    below, at = binding(tmp_path / "run.db", turn - 1), binding(tmp_path / "run.db", turn)
    assert below.is_weights_bound and not at.is_weights_bound


@pytest.mark.parametrize("shape", ["", "[]", "[0, 4]", "[true", "{}", "[\"8\"]"])
def test_a_batch_that_is_not_recorded(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "run.db"
    write_store(path, graph(8))
    change_store(path, f"UPDATE tensors SET shape = '{shape}' WHERE name = 'input_0'")
    with Store(str(path)) as store:
        run = store.run(1)
        assert find_batch(store, run, roles.classes_of(store, run), roles.phases_of(store, run)) is None


def test_a_step_that_only_weights_make_turns_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    write_store(path, graph(8))
    change_store(path, SHAPES + "; UPDATE tensors SET shape = '[3]' WHERE shape = '' AND kind <> 'workspace'; "
                 "UPDATE tensors SET size_bytes = 60 WHERE kind = 'workspace'; "
                 "UPDATE tensors SET shape = '[8]', size_bytes = 0 WHERE name = 'input_0'")
    with Store(str(path)) as store:
        run = store.run(1)
        found = find_batch(store, run, roles.classes_of(store, run), roles.phases_of(store, run))
        assert bind(found, Curve(store, run, False), None).turn_batch is None
