# SPDX-License-Identifier: Apache-2.0
"""What the commands print of a step of a loop."""

import json
from functools import partial
from pathlib import Path

import pytest
from cli.sample_store import MIB, STEP, Stowage, change_store, shown_with

from stowage.curve import Curve
from stowage.store import Store

NOTE = ("stowage: run 4 'step on cpu' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:16:20 UTC\n")


@pytest.fixture
def step_store(store: Path) -> Path:
    change_store(store, STEP)
    return store


shown = partial(shown_with, note=NOTE)


def test_info_tells_steps_from_graphs(stowage: Stowage, step_store: Path) -> None:
    assert shown(stowage, "info", "run.db", note="").splitlines()[9:] == [
        "run  kind   name         ops  unplanned peak  planned peak   saved      bound      arena  status",
        "  1  graph  eval           0            64 B             -       -          -          -  "
        "not planned: ended early",
        "  2  graph  step           6       16.00 MiB     13.00 MiB  18.7 %  13.00 MiB  10.00 MiB  "
        "order optimal, layout optimal",
        "  3  graph  step           0            64 B             -       -          -          -  not planned",
        "  4  step   step on cpu    4        8.00 MiB      8.00 MiB       -   8.00 MiB  12.00 MiB  "
        "order kept, layout feasible",
    ]


def test_ops_of_a_step_begin_with_what_the_step_before_left(stowage: Stowage, step_store: Path) -> None:
    expected = """\
step  op     time  allocated     freed      live  kind          name       scope
   0   0   400 ns        0 B  4.00 MiB  4.00 MiB  aten::zero_   zero_.0
   1   1   900 ns   2.00 MiB       0 B  2.00 MiB  aten::linear  linear.0
   2   2  1.00 us   6.00 MiB  4.00 MiB  8.00 MiB  aten::mm      mm.0       MmBackward0
   3   3     0 ns  64.00 KiB       0 B  4.06 MiB  outside       outside.0
"""
    assert shown(stowage, "ops", "run.db") == expected
    assert shown(stowage, "ops", "run.db", "--planned") == expected


def test_what_the_next_step_frees_is_no_leak(stowage: Stowage, step_store: Path) -> None:
    assert shown(stowage, "tensors", "run.db") == """\
     size  tensor     class              lives                          allocated by    scope        last used by  dtype  shape
 4.00 MiB  mm.0       gradients          op 2 to op 0 of the next step  2 aten::mm      MmBackward0  -
 2.00 MiB  linear.0   saved activations  op 1 to op 2                   1 aten::linear               -
 2.00 MiB  mm.0/1     workspace          op 2 to op 2                   2 aten::mm      MmBackward0  -
64.00 KiB  outside.0  gradients          op 3 to end                    3 outside                    -
"""


def test_peak_of_a_step_names_its_op(stowage: Stowage, step_store: Path) -> None:
    assert shown(stowage, "peak", "run.db") == """\
before planning: 8.00 MiB in step 2: op 2 aten::mm 'mm.0' in MmBackward0
    size  tensors  class
4.00 MiB        1  gradients
2.00 MiB        1  saved activations
2.00 MiB        1  workspace
biggest:
    size  tensor    class
4.00 MiB  mm.0      gradients
2.00 MiB  linear.0  saved activations
2.00 MiB  mm.0/1    workspace

after planning: the same, as nothing moves in a step; arena 12.00 MiB, bound 8.00 MiB
"""


def test_a_gradient_that_waits_for_its_successor_counts_twice(stowage: Stowage, step_store: Path) -> None:
    change_store(step_store, f"UPDATE carried SET free_op = 2, free_event = 7 WHERE run_id = 4; "
                             f"UPDATE runs SET peak_bytes = {12 * MIB} WHERE id = 4; "
                             f"UPDATE plans SET peak_bytes = {12 * MIB} WHERE run_id = 4")
    peak = json.loads(shown(stowage, "peak", "run.db", "--json", note=""))
    for side in (peak["before"], peak["after"]):
        assert side["live_bytes"] == 12 * MIB == sum(tensor["size_bytes"] for tensor in side["tensors"])
        assert side["tensors"][0]["size_bytes"] == 8 * MIB


def test_plan_shows_both_places_of_what_takes_turns(stowage: Stowage, step_store: Path) -> None:
    assert shown(stowage, "plan", "run.db").splitlines()[-5:] == [
        "",
        "  offset   in turn      size  tensor    kind",
        "     0 B       0 B  2.00 MiB  linear.0  intermediate",
        "2.00 MiB  2.00 MiB  2.00 MiB  mm.0/1    workspace",
        "4.00 MiB  8.00 MiB  4.00 MiB  mm.0      output",
    ]


def test_the_replay_of_a_step_finds_its_peak(step_store: Path) -> None:
    with Store(str(step_store)) as opened:
        run = opened.run(4)
        for planned in (False, True):
            assert Curve(opened, run, planned).peak()["live_bytes"] == run["unplanned_peak_bytes"] == run["planned_peak_bytes"]
            assert max(op["live_bytes"] for op in opened.ops(run, planned)) == run["unplanned_peak_bytes"]
