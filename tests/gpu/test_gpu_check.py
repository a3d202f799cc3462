# SPDX-License-Identifier: Apache-2.0
"""The check on a real GPU: what it does to what it finds, and the check itself where there is one."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = str(ROOT / "scripts/benchmarks")
sys.path.insert(0, BENCHMARKS)
if "STOWAGE_LIBRARY" in os.environ:
    sys.path.insert(0, str(ROOT / "scripts"))

from gpu import memory, sizes  # noqa: E402
from gpu.gpu_check import PARTS, Part as PartOf, how_it_ended, limit_of, run_part  # noqa: E402
from gpu.outcome import Failure, Outcome, Part, Skip, first_line, is_dry, read_line  # noqa: E402
from gpu.report import PartReport, Report, line  # noqa: E402
from gpu.step_time import summary  # noqa: E402
from gpu.training import difference, differing  # noqa: E402

sys.path.remove(BENCHMARKS)  # a benchmark has the name of a folder of tests

GPU, DRY_GPU = "NVIDIA H200", "NVIDIA H100 80GB HBM3 (dry)"


def no_gpu() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device: run scripts/gpu_check on a machine with one"
    return f"'{torch.cuda.get_device_name()}' computes nothing" if is_dry(torch.cuda.get_device_name()) else ""


@pytest.mark.slow
@pytest.mark.skipif(bool(no_gpu()), reason=no_gpu() or "there is a GPU")
def test_everything_on_this_gpu(tmp_path):
    command = [str(ROOT / "scripts/gpu_check"), "--no-setup", "--out", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, (tmp_path / "gpu-check.txt").read_text()


# --- outcomes -----------------------------------------------------------------------------------------------------

def outcomes_of(device: str, body, seconds: float = 60, needs_s: float = 1, state: str = "passed") -> list[Outcome]:
    lines: list[str] = []
    Part(time.monotonic() + seconds, device, lines.append).attempt("check", needs_s, body, state)
    return [read_line(text) for text in lines]


def raise_(error: Exception):
    raise error


@pytest.mark.parametrize(("body", "state", "detail"), [
    (lambda: "well", "passed", "well"),
    (lambda: raise_(Skip("why")), "skipped", "why"),
    (lambda: raise_(Failure("what")), "failed", "what"),
    (lambda: raise_(ValueError("\n  one\ntwo")), "failed", "ValueError: one"),
    (lambda: raise_(torch.OutOfMemoryError("much")), "failed", "OutOfMemoryError: much"),
])
def test_a_check_ends_in_one_state(body, state, detail):
    (outcome,) = outcomes_of(GPU, body)
    assert (outcome.state, outcome.detail, outcome.dry) == (state, detail, False)


def test_a_check_without_time_is_skipped_visibly_and_not_begun():
    (outcome,) = outcomes_of(GPU, lambda: raise_(AssertionError("begun")), seconds=3, needs_s=10)
    assert (outcome.state, outcome.detail) == ("skipped", "no time: needs about 10 s, 3 s left")


def test_values_are_compared_on_a_gpu_and_skipped_on_dry_cuda():
    def body(part: Part) -> str:
        part.same("these", lambda: "weight: 1 of 2 elements differ")
        return "equal"

    (real,) = outcomes_of(GPU, lambda: body(Part(0, GPU)))
    assert (real.state, real.detail) == ("failed", "weight: 1 of 2 elements differ")
    (dry,) = outcomes_of(DRY_GPU, lambda: body(Part(0, DRY_GPU)))
    assert (dry.state, dry.detail, dry.dry) == ("skipped", "dry CUDA: kernels do nothing, these not compared", True)


def test_what_libraries_print_is_no_outcome():
    assert read_line("some warning") is None
    assert read_line('{"state": "passed"}') is None
    assert read_line('{"name": "a", "state": "odd"}') is None
    assert read_line(Outcome("a", "passed").to_line()) == Outcome("a", "passed")
    assert first_line("\n \n") == "no message"


def test_tensors_are_compared_bit_by_bit():
    nan = torch.tensor([float("nan"), 0.0, 1.0])
    assert difference({"a": nan}, {"a": nan.clone()}) is None
    assert difference({"a": torch.tensor([0.0, 1.0])}, {"a": torch.tensor([-0.0, 1.0])}) == "a: 1 of 2 elements differ"
    assert difference({"a": nan}, {"a": nan, "b": nan}) == "only one has b"
    assert differing(torch.tensor(2, dtype=torch.int64), torch.tensor(3, dtype=torch.int64)) == 1
    assert differing(torch.zeros(2, 3).t(), torch.zeros(3, 2)) == 0
    assert differing(torch.zeros(4), torch.zeros(4, dtype=torch.float64)) == 4
    assert differing(torch.zeros(0), torch.zeros(0)) == 0


# --- figures ------------------------------------------------------------------------------------------------------

def test_a_plan_that_reserves_more_than_eager_fails():
    found = {"eager": {"reserved_bytes": 1000}, "planned": {"reserved_bytes": 900}}
    assert memory.check_saving(found, "planned", "eager") == "'planned' reserves 10.00% less than 'eager'"
    found["planned"]["reserved_bytes"] = 1020
    with pytest.raises(Failure, match="^'planned' reserves 2.00% more than 'eager'$"):
        memory.check_saving(found, "planned", "eager")
    with pytest.raises(Failure, match="^no figures of 'eager'$"):
        memory.check_saving({"planned": {"reserved_bytes": 1}}, "planned", "eager")


def test_figures_show_their_ratio_to_those_of_dry_cuda():
    figures = {"reserved_bytes": 3 << 20, "allocated_bytes": 2 << 20}
    assert memory.text_of(figures, None) == "reserved 3.0 MiB, allocated 2.0 MiB"
    assert memory.text_of(figures, {"reserved_bytes": 2 << 20}) == \
        "reserved 3.0 MiB (1.500 of dry CUDA's), allocated 2.0 MiB"
    with pytest.raises(Failure, match="^out of memory with 1 GiB$"):
        memory.figures_of({"out_of_memory": "out of memory with 1 GiB"})


def test_the_figures_of_dry_cuda_cover_every_case_and_mode():
    modes = set(memory.MODES)
    found = {case: set(figures) for case, figures in memory.read_dry_figures().items()}
    assert found == {str(case): modes for case in memory.CASES}


def test_written_figures_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "DRY_FIGURES", tmp_path / "figures.json")
    assert memory.read_dry_figures() == {}
    values = {"case": "a", "mode": "eager", "reserved_bytes": 2, "allocated_bytes": 1}
    memory.write_dry_figures([{"values": values}, {"values": {}}], "dry CUDA")
    assert memory.read_dry_figures() == {"a": {"eager": {"reserved_bytes": 2, "allocated_bytes": 1}}}


def test_step_times_are_compared_pair_by_pair():
    found = summary([2.0, 4.0, 9.0], [1.0, 4.0, 10.0])
    assert (found["ratio"], found["planned_ms"], found["unplanned_ms"], found["pairs"]) == (1.0, 4.0, 4.0, 3)


# --- sizes --------------------------------------------------------------------------------------------------------

def store(recorded: bool, cupti_bytes: int = 8, dropped: int = 0) -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.executescript(f"CREATE TABLE runs (dropped_records); INSERT INTO runs VALUES ({dropped});"
                       "CREATE TABLE allocations (id); INSERT INTO allocations VALUES (1);")
    if recorded:
        made.executescript("ALTER TABLE runs ADD COLUMN size_mismatches DEFAULT 0;"
                           "CREATE TABLE kernels (op); INSERT INTO kernels VALUES (1), (NULL);"
                           f"CREATE VIEW size_sources AS SELECT 8 AS allocator_bytes, {cupti_bytes} AS cupti_bytes")
    return made


def test_sizes_that_agree_pass():
    text, found = sizes.judge(sizes.read_sizes(store(recorded=True)), [])
    assert text == ("1 of 1 allocations seen by CUPTI too, all with the same size; 1 of 2 kernels belong to an op; "
                    "nothing dropped")
    assert found["sizes_unlike"] == 0


@pytest.mark.parametrize(("made", "match"), [
    (lambda: store(recorded=True, cupti_bytes=9), "^sizes_unlike: 1;"),
    (lambda: store(recorded=True, dropped=3), "^dropped_records: 3;"),
    (lambda: store(recorded=False, dropped=3), "^dropped_records: 3;"),
])
def test_sizes_that_disagree_and_lost_records_fail(made, match):
    with pytest.raises(Failure, match=match):
        sizes.judge(sizes.read_sizes(made()), [])


def test_a_store_without_sizes_of_cupti_is_not_recorded():
    with pytest.raises(Skip, match="^not recorded: this build's store has no sizes of CUPTI's;"):
        sizes.judge(sizes.read_sizes(store(recorded=False)), [])
    found = {**sizes.read_sizes(store(recorded=True)), "sizes_seen_twice": 0}
    with pytest.raises(Skip, match="^not recorded: CUPTI saw no allocation; notes: it is taken;"):
        sizes.judge(found, ["it is taken\nand more"])


# --- the whole ----------------------------------------------------------------------------------------------------

def test_unused_time_goes_to_later_parts():
    first, *later = PARTS
    total = sum(part.limit_s for part in PARTS)
    assert total <= 292
    assert limit_of(first, later, total, 1) == first.limit_s
    assert limit_of(first, later, total + 10, 1) == first.limit_s + 10
    assert limit_of(later[-1], [], 7, 1) == 7
    assert limit_of(first, later, 2 * total, 2) == 2 * first.limit_s


def worker(folder: Path, source: str) -> dict[str, str]:
    (folder / "gpu").mkdir()
    (folder / "gpu/stand_in.py").write_text(source)
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_a_part_that_hangs_is_ended_and_keeps_what_it_found(tmp_path):
    passed = Outcome("first", "passed", "well")
    environment = worker(tmp_path, f"import time\nprint({passed.to_line()!r}, flush=True)\ntime.sleep(60)")
    report = run_part(PartOf("stand-in", "stand_in", 9), 2, environment)
    assert report.outcomes[0] == passed
    assert [outcome.state for outcome in report.outcomes] == ["passed", "failed"]
    assert report.outcomes[1].detail.startswith("it was ended at its limit")
    assert 2 <= report.seconds < 10


def test_a_part_that_crashes_fails_with_its_last_words(tmp_path):
    report = run_part(PartOf("stand-in", "stand_in", 9), 20, worker(tmp_path, "import sys\nsys.exit('cannot go on')"))
    (outcome,) = report.outcomes
    assert (outcome.state, outcome.detail) == ("failed", "exit status 1: cannot go on")


def test_how_a_part_ended():
    assert how_it_ended(0, False, "a warning") is None
    assert how_it_ended(-6, False, "terminate\nframe #0: x\n").detail == "exit status -6: terminate"
    assert how_it_ended(1, False, "").detail == "exit status 1: it says nothing"


def report_of(*outcomes: Outcome) -> Report:
    return Report("scripts/gpu_check", 300, 12, [PartReport("part", 20, 3, list(outcomes))])


def test_the_report_fails_when_a_check_did_or_none_ran():
    assert report_of(Outcome("a", "passed"), Outcome("b", "skipped")).succeeded()
    assert not report_of(Outcome("a", "passed"), Outcome("b", "failed")).succeeded()
    assert not report_of().succeeded()


def test_what_dry_cuda_gave_is_labelled():
    figure = Outcome("step", "figure", "3 MiB", {"capability": "9.0"}, dry=True)
    assert line(figure) == "figure   step: dry CUDA: 3 MiB"
    assert line(Outcome("step", "passed", "3 MiB", dry=True)) == "passed   step: dry CUDA: 3 MiB"
    assert line(Outcome("step", "figure", "3 MiB")) == "figure   step: 3 MiB"
    report = report_of(figure, Outcome("b", "skipped", "why", dry=True))
    assert report.to_text().splitlines() == [
        "dry CUDA: measured without a GPU, values not compared", "scripts/gpu_check: 12 s of 300 s", "",
        "part (3 s of 20 s)", "  figure   step: dry CUDA: 3 MiB", "  skipped  b: dry CUDA: why", "",
        "0 passed, 0 failed, 1 skipped, 1 figures"]
    written = json.loads(json.dumps(report.to_json()))
    assert written["dry"] and written["succeeded"] and written["facts"] == {"capability": "9.0"}
    assert report_of(Outcome("step", "figure", "3 MiB")).to_text().startswith("on a GPU\n")
