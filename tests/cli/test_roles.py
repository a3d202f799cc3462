# SPDX-License-Identifier: Apache-2.0
"""The classes of tensors, from the record alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from cli.sample_store import STEP, change_store
from cli.written_steps import Graph, Op, write_store

from stowage import roles
from stowage.store import Store

# loss = sum(relu(x @ w * n)); SGD with momentum and `maximize` for w, plain for v.
INPUTS = {"input_0": (64, "[8, 2]"), "target_0": (8, "[8]"), "p_w": (40, ""), "p_layer_v": (20, ""), "b_n": (4, ""),
          "s_momentum_buffer_w": (40, ""), "c_0": (4, "")}
STEP_OPS = [
    Op("mm", "aten::mm", ("input_0", "p_w"), makes={"mm": 100}, workspace=7),
    Op("mul", "aten::mul", ("mm", "c_0"), ("b_n",), {"mul": 100}),
    Op("relu", "aten::relu", ("mul",), makes={"relu": 100, "mask": 10}),
    Op("loss", "aten::sum", ("relu", "p_layer_v", "target_0"), makes={"loss": 4}),
    Op("threshold_backward", "aten::threshold_backward", ("mask",), makes={"d": 100}),
    Op("sum_1", "aten::sum", ("d",), makes={"gv": 20}),
    Op("mm_1", "aten::mm", ("mm", "d", "p_w"), makes={"gw": 40}, workspace=9),
    Op("neg_w", "aten::neg", ("gw",), makes={"neg": 40}),
    Op("mul__w", "aten::mul_", ("s_momentum_buffer_w",), ("s_momentum_buffer_w",)),
    Op("add__w", "aten::add_", ("s_momentum_buffer_w", "neg"), ("s_momentum_buffer_w",)),
    Op("add__w_1", "aten::add_", ("p_w", "s_momentum_buffer_w"), ("p_w",)),
    Op("add__layer_v", "aten::add_", ("p_layer_v", "gv"), ("p_layer_v",)),
]
GRAPH = Graph(INPUTS, STEP_OPS)


def classes(tmp_path: Path, graph: Graph, script: str = "") -> dict[str, str]:
    """By name; workspaces by the op that has them."""
    path = tmp_path / "run.db"
    write_store(path, graph)
    change_store(path, script)
    with Store(str(path)) as store:
        found = roles.classes_of(store, store.run(1))
        rows = store.query("SELECT t.tensor, coalesce(nullif(t.name, ''), o.name || ' workspace') AS name FROM tensors AS t "
                           "LEFT JOIN allocations AS a ON a.tensor = t.tensor LEFT JOIN ops AS o ON o.op = a.op "
                           "WHERE t.run_id = 1")
    assert len(rows) == len(found)
    return {row["name"]: found[row["tensor"]] for row in rows}


def test_a_captured_step(tmp_path: Path) -> None:
    assert classes(tmp_path, GRAPH) == {
        "input_0": roles.BATCH, "target_0": roles.BATCH, "p_w": roles.PARAMETERS, "p_layer_v": roles.PARAMETERS,
        "b_n": roles.BUFFERS, "s_momentum_buffer_w": roles.OPTIMIZER_STATE, "c_0": roles.CONSTANTS,
        # mm and mask are used by the backward; mul and relu are not.
        "mm": roles.SAVED, "mask": roles.SAVED, "mul": roles.TEMPORARIES, "relu": roles.TEMPORARIES, "loss": roles.OUTPUTS,
        "d": roles.TEMPORARIES, "gv": roles.GRADIENTS, "gw": roles.GRADIENTS,
        # What the update makes of a gradient is none.
        "neg": roles.TEMPORARIES, "mm workspace": roles.WORKSPACE, "mm_1 workspace": roles.WORKSPACE,
    }


def test_the_backward_may_end_with_what_an_update_begins_with(tmp_path: Path) -> None:
    """Named after no parameter, the negation is the backward's, and what it makes is the gradient."""
    found = classes(tmp_path, GRAPH, "UPDATE ops SET name = 'neg' WHERE name = 'neg_w'")
    assert (found["neg"], found["gw"]) == (roles.GRADIENTS, roles.TEMPORARIES)


def test_a_forward_that_writes_a_parameter_updates_none(tmp_path: Path) -> None:
    """As an embedding with a largest norm does."""
    renorm = Op("renorm", "aten::embedding_renorm_", ("p_w",), ("p_w",))
    found = classes(tmp_path, Graph(INPUTS, [renorm, *STEP_OPS]))
    assert (found["mm"], found["d"], found["gw"]) == (roles.SAVED, roles.TEMPORARIES, roles.GRADIENTS)


def test_gradients_that_the_user_keeps(tmp_path: Path) -> None:
    kept = [*STEP_OPS[:7], Op("add__1", "aten::add_", ("g_w", "gw"), ("g_w",)), *STEP_OPS[8:]]
    kept[9] = replace(kept[9], reads=("s_momentum_buffer_w", "g_w"))
    found = classes(tmp_path, Graph(INPUTS | {"g_w": (40, "")}, kept))
    assert (found["g_w"], found["gw"], found["gv"]) == (roles.GRADIENTS,) * 3


def test_a_graph_that_a_budget_has_made(tmp_path: Path) -> None:
    """The update of v runs before the backward ends, and mm runs again: what it makes then is no longer saved."""
    again = Op("mm.again", "aten::mm", ("input_0", "p_w"), makes={"mm.again": 100})
    backward = replace(STEP_OPS[6], reads=("mm.again", "d", "p_w"))
    ops = [*STEP_OPS[:6], STEP_OPS[11], again, backward, *STEP_OPS[7:11]]
    origins = [0, 1, 2, 3, 4, 5, 11, 0, 6, 7, 8, 9, 10]
    script = ";".join(f"UPDATE ops SET program_op = {origin} WHERE op = {op}" for op, origin in enumerate(origins))
    found = classes(tmp_path, Graph(INPUTS, ops), script)
    assert [found[name] for name in ("gv", "gw", "neg", "mask")] == [
        roles.GRADIENTS, roles.GRADIENTS, roles.TEMPORARIES, roles.SAVED]
    assert (found["mm"], found["mm.again"]) == (roles.TEMPORARIES, roles.TEMPORARIES)


@pytest.mark.parametrize("script", [
    "UPDATE tensors SET name = 'sum' WHERE name = 'loss'",  # inference: what it returns is no loss
    "UPDATE tensors SET name = 'self_' || tensor WHERE name LIKE 'p\\_%' ESCAPE '\\'",  # a script of one's own
])
def test_a_graph_that_is_no_captured_step(tmp_path: Path, script: str) -> None:
    found = classes(tmp_path, GRAPH, script)
    assert list(found.values())[:len(INPUTS)] == [roles.INPUTS] * len(INPUTS)
    assert {found["mm"], found["gw"], found["neg"]} == {roles.TEMPORARIES}
    assert set(found.values()) == {roles.INPUTS, roles.OUTPUTS, roles.TEMPORARIES, roles.WORKSPACE}


def test_a_step_without_updates(tmp_path: Path) -> None:
    found = classes(tmp_path, Graph(INPUTS, STEP_OPS[:4]))
    assert roles.GRADIENTS not in found.values() and roles.SAVED not in found.values()
    assert found["p_w"] == roles.PARAMETERS


def test_a_step_of_a_loop(store: Path) -> None:
    change_store(store, STEP)
    with Store(str(store)) as opened:
        found = roles.classes_of(opened, opened.run(4))
    # What no op made (3) falls into the phase that it follows, here the backward.
    assert found == {0: roles.SAVED, 1: roles.GRADIENTS, 2: roles.WORKSPACE, 3: roles.GRADIENTS}


def test_every_class_is_drawn() -> None:
    named = {value for name, value in vars(roles).items() if name.isupper() and isinstance(value, str)}
    assert named == set(roles.CLASSES) and len(roles.CLASSES) == len(named)
