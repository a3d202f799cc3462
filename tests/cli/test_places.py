# SPDX-License-Identifier: Apache-2.0
"""To which module a tensor belongs."""

from dataclasses import replace
from pathlib import Path

from cli.written_steps import Graph, Op, write_store

from stowage import roles
from stowage.explaining.places import Modules, shorten
from stowage.store import Store

INPUTS = {name: (8, "[8]") for name in (
    "input_0", "p_layer1_0_conv1_weight", "p_layer1_0_attn_in_proj_weight", "p_scale", "b_layer1_0_bn_running_mean",
    "s_exp_avg_sq_layer1_0_conv1_weight", "s_exp_avg_scale", "g_layer1_0_conv1_weight")}
OPS = [
    Op("conv", "aten::convolution", ("input_0", "p_layer1_0_conv1_weight"), makes={"conv": 8}, scope="layer1.0.conv1"),
    Op("relu", "aten::relu", ("conv",), makes={"relu": 8}),
    Op("attn", "aten::mm", ("relu", "p_layer1_0_attn_in_proj_weight"), makes={"attn": 8}, scope="layer1.0.attn"),
    Op("norm", "aten::batch_norm", ("attn", "b_layer1_0_bn_running_mean"), makes={"norm": 8}, scope="layer1.0.bn"),
    Op("loss", "aten::sum", ("norm", "p_scale"), makes={"loss": 4}, scope="loss"),
    Op("sqrt_layer1_0_conv1_weight", "aten::sqrt", ("s_exp_avg_sq_layer1_0_conv1_weight",), makes={"root": 8},
       scope="optimizer.layer1.0.conv1"),
    Op("add__layer1_0_conv1_weight", "aten::add_", ("p_layer1_0_conv1_weight", "root"), ("p_layer1_0_conv1_weight",)),
]


def modules(path: Path, ops: list[Op]) -> tuple[Modules, dict[str, str]]:
    write_store(path, Graph(INPUTS, ops))
    with Store(str(path)) as store:
        run = store.run(1)
        found = Modules(store, run, roles.phases_of(store, run))
        names = store.query("SELECT tensor, name FROM tensors")
    return found, {row["name"]: found.of_tensor[row["tensor"]] for row in names}


def test_as_recorded(tmp_path: Path) -> None:
    found, of_tensor = modules(tmp_path / "run.db", OPS)
    assert found.are_recorded
    assert of_tensor == {
        "input_0": "", "p_layer1_0_conv1_weight": "layer1.0.conv1", "p_layer1_0_attn_in_proj_weight": "layer1.0.attn",
        "p_scale": "", "b_layer1_0_bn_running_mean": "layer1.0.bn", "s_exp_avg_sq_layer1_0_conv1_weight": "layer1.0.conv1",
        "s_exp_avg_scale": "", "g_layer1_0_conv1_weight": "layer1.0.conv1", "conv": "layer1.0.conv1",
        # Not recorded with the op: where what it reads comes from.
        "relu": "layer1.0.conv1", "attn": "layer1.0.attn", "norm": "layer1.0.bn", "loss": "loss", "root": "layer1.0.conv1"}


def test_by_the_names_of_parameters(tmp_path: Path) -> None:
    found, of_tensor = modules(tmp_path / "run.db", [replace(op, scope="") for op in OPS])
    assert not found.are_recorded
    assert of_tensor == {
        "input_0": "", "p_layer1_0_conv1_weight": "layer1_0_conv1", "p_layer1_0_attn_in_proj_weight": "layer1_0_attn",
        "p_scale": "", "b_layer1_0_bn_running_mean": "layer1_0_bn", "s_exp_avg_sq_layer1_0_conv1_weight": "layer1_0_conv1",
        "s_exp_avg_scale": "", "g_layer1_0_conv1_weight": "layer1_0_conv1", "conv": "layer1_0_conv1",
        "relu": "layer1_0_conv1", "attn": "layer1_0_attn", "norm": "layer1_0_bn", "loss": "layer1_0_bn",
        "root": "layer1_0_conv1"}


def test_as_many_levels_as_can_be_read() -> None:
    few = [f"layer{layer}.{block}.conv" for layer in range(4) for block in range(2)]
    assert shorten(few) == {path: path for path in few}
    blocks = [f"{path}{number}" for path in few for number in (1, 2, 3)]
    assert set(shorten(blocks).values()) == {path.removesuffix(".conv") for path in few}
    deep = [f"blocks.{number}.mlp" for number in range(40)] + [""]
    assert set(shorten(deep).values()) == {"blocks", ""}
