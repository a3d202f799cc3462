# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` prints of a step, and what it refuses."""

import json
from pathlib import Path

import pytest
from cli.sample_store import MIB, SCHEMA, STEP, Stowage, change_store, damaged_copies

NOTE = ("stowage: run 4 'step on cpu' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:16:20 UTC\n")
BACKWARD_PEAK = """\
The step's peak is in the backward (MmBackward0): 8.00 MiB at op 2 aten::mm 'mm.0'.
That is what the step allocates; what was there before (parameters, optimizer state, the batch) comes on top.

There live:
    size  tensors  what
4.00 MiB        1  gradients, from the backward until they are cleared; by aten::mm
2.00 MiB        1  temporaries of the backward; by aten::mm
2.00 MiB        1  saved by the forward for the backward; by aten::linear

What would move it:
"""
# Makes run 4 one that clips and updates with an optimizer whose single-tensor form is not known.
UPDATE = f"""
    DELETE FROM slots; DELETE FROM points; DELETE FROM plan_order; DELETE FROM plans;
    UPDATE ops SET kind = 'aten::_foreach_norm' WHERE run_id = 4 AND op = 3;
    INSERT INTO ops VALUES
      (4, 4, '_foreach_sqrt.0', 'aten::_foreach_sqrt', 'Optimizer.step#Other.step', '', 3000, 500, 0, NULL),
      (4, 5, '_foreach_mul_.0', 'aten::_foreach_mul_', 'Optimizer.step#Other.step', '', 3500, 500, 0, NULL);
    INSERT INTO tensors VALUES
      (4, 4, '_foreach_sqrt.0', 'intermediate', {4 * MIB}, '', ''), (4, 5, '', 'intermediate', {3 * MIB}, '', '');
    INSERT INTO allocations VALUES
      (4, 4, 4, 4, 0, {4 * MIB}, {4 * MIB}, 0, 7, 5, 10, 'allocator', 0),
      (4, 5, 5, 4, 1, {3 * MIB}, {3 * MIB}, 0, 8, 5, 9, 'allocator', 0);
    UPDATE runs SET peak_bytes = {11 * MIB + 65536} WHERE id = 4;
"""


@pytest.fixture
def step_store(store: Path) -> Path:
    change_store(store, STEP)
    return store


def shown(stowage: Stowage, *arguments: str, note: str = NOTE) -> str:
    result = stowage("explain", "run.db", *arguments)
    assert (result.returncode, result.stderr) == (0, note)
    return result.stdout


def refused(stowage: Stowage, *arguments: str) -> str:
    result = stowage("explain", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("stowage: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("stowage: ").rstrip("\n")


def test_a_step_without_an_update(stowage: Stowage, step_store: Path) -> None:
    assert shown(stowage) == BACKWARD_PEAK + (
        "- foreach=False: cannot help, the step updates nothing.\n"
        "- updates in the backward: cannot help, the step updates nothing.\n")


def test_a_step_that_clips_and_updates(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, UPDATE)
    assert shown(stowage).splitlines()[4:] == [
        "     size  tensors  what",
        " 7.00 MiB        2  temporaries of the optimizer; by aten::_foreach_sqrt: 1.8 times as large as all gradients, so as "
        "all parameters (param-sized intermediate)",
        " 4.00 MiB        1  gradients, from the backward until they are cleared; by aten::mm",
        "64.00 KiB        1  made outside the backward, kept by the program; by aten::_foreach_norm",
        "",
        "What would move it:",
        "- foreach=False: 8.06 MiB, 27.1 % less, still in the optimizer's step (Other.step), beside temporaries of 4.00 MiB. "
        "So the optimizer makes temporaries of one parameter after another. It may be more: what that form of this optimizer "
        "holds at once is not known.",
        "- updates in the backward: 8.00 MiB, 27.7 % less, then in the backward (MmBackward0). So each gradient dies with its "
        "own update (Tensor.register_post_accumulate_grad_hook). Not with aten::_foreach_norm between backward and update, "
        "which takes all gradients.",
    ]


def test_what_would_need_more(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, UPDATE.replace("Other", "Adam"))
    # The root of the second parameter and its quotient, beside the quotient of the first: 2 * 3 + 4.
    assert shown(stowage).splitlines()[-2] == (
        "- foreach=False: would not help, the peak would be 14.06 MiB, in the optimizer's step (Adam.step), beside "
        "temporaries of 10.00 MiB.")


def test_json(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, UPDATE)
    found = json.loads(shown(stowage, "--json", note=""))
    assert found["run"]["run_id"] == 4
    assert found["peak"] == {
        "live_bytes": 11 * MIB + 65536, "place": "optimizer", "optimizer": "Other.step",
        "op": {"op": 4, "name": "_foreach_sqrt.0", "kind": "aten::_foreach_sqrt", "scope": "Optimizer.step#Other.step"}}
    assert sum(each["size_bytes"] for each in found["classes"]) == 11 * MIB + 65536
    assert [(each["name"], each["peak"]["live_bytes"], each["peak"]["place"], each["helps"], each["saved_bytes"])
            for each in found["moves"]] == [
        ("foreach=False", 8 * MIB + 65536, "optimizer", True, 3 * MIB),
        ("updates in the backward", 8 * MIB, "backward", True, 3 * MIB + 65536)]


def test_a_peak_that_was_stated_otherwise_is_pointed_out(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, "UPDATE runs SET peak_bytes = 5 WHERE id = 4")
    assert shown(stowage, note=NOTE + "stowage: the record states a peak of 5 B, its events replayed have 8388608 B\n")


def test_a_step_of_a_loop_comes_before_the_graphs_that_ran_in_it(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, UPDATE)  # the step has no plan now, but a run of a graph has
    assert json.loads(shown(stowage, "--json", note=""))["run"]["run_id"] == 4


def test_a_run_that_is_not_there(stowage: Stowage, step_store: Path) -> None:
    assert refused(stowage, "run.db", "--run", "9") == (
        "cannot find run 9 in store 'run.db': it has runs 1 to 4; list them with 'stowage info'")


def test_a_step_that_allocates_nothing(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, "DELETE FROM carried WHERE run_id = 4; DELETE FROM slots WHERE run_id = 4; "
                             "DELETE FROM points WHERE run_id = 4; DELETE FROM allocations WHERE run_id = 4")
    assert refused(stowage, "run.db") == (
        "cannot explain run 4 of store 'run.db': it allocates nothing of 1 KiB or more; choose another from 'stowage info'")


def test_no_file_and_no_runs(stowage: Stowage, tmp_path: Path) -> None:
    assert refused(stowage, "nowhere.db") == "cannot open store 'nowhere.db': no such file; check the path"
    change_store(tmp_path / "new.db", SCHEMA)
    assert refused(stowage, "new.db") == (
        "cannot choose a run of store 'new.db': it has none; profile a run into it first")


def test_it_needs_no_torch(stowage_process: Stowage, step_store: Path) -> None:
    result = stowage_process("explain", "run.db")
    assert (result.returncode, result.stdout.startswith(BACKWARD_PEAK)) == (0, True)


def test_whatever_bytes_are_wrong_the_answer_is_a_line(stowage: Stowage, step_store: Path) -> None:
    refusals = 0
    for seed, copy in damaged_copies(step_store, 200):
        result = stowage("explain", copy)
        assert result.returncode in (0, 1), f"seed {seed}"
        if result.returncode == 1:
            refusals += 1
            assert result.stderr.startswith("stowage: cannot ") and result.stderr.count("\n") == 1, f"seed {seed}"
    assert refusals > 0
