# SPDX-License-Identifier: Apache-2.0
"""`stowage budget`: the step it makes of a store, and what it shows of the solver's answer."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from cli.sample_store import MIB, Stowage, change_store, shown_with

from stowage.problem import choose_run, to_problem
from stowage.store import Store

NOTE = ("stowage: run 2 'step' on cpu, torch 2.11.0, stowage 0.1.0, steady_clock, 0 records dropped, "
        "2023-11-14 22:14:20 UTC\n")
ROWS = [
    {"budget_bytes": 16 * MIB + 4, "peak_bytes": 16 * MIB + 4, "time_ns": 4_000_000, "time_ratio": 1.0,
     "bound_time_ratio": 1.0, "status": "optimal", "repeats": 0},
    {"budget_bytes": 12 * MIB, "peak_bytes": 11 * MIB, "time_ns": 4_400_000, "time_ratio": 1.1,
     "bound_time_ratio": 1.05, "status": "feasible", "repeats": 2},
    {"budget_bytes": 8 * MIB, "peak_bytes": 9 * MIB, "time_ns": 5_000_000, "time_ratio": 1.25,
     "bound_time_ratio": 1.2, "status": "timed_out", "repeats": 31},
]
ANSWER = {"name": "step", "unplanned_peak_bytes": 16 * MIB + 4, "unplanned_time_ns": 4_000_000,
          "least_peak_bytes": 9 * MIB, "bound_peak_bytes": 7 * MIB, "rows": ROWS}
# Stands for stowage-solve: keeps what it is asked, and answers with what lies beside it.
FAKE = """\
#!{python}
import json, sys
from pathlib import Path
folder = Path(__file__).parent
step = json.loads(Path(sys.argv[2]).read_text())
(folder / "asked.json").write_text(json.dumps({{"arguments": [sys.argv[1], *sys.argv[3:]], "step": step}}))
sys.stdout.write((folder / "answer").read_text())
sys.stderr.write((folder / "errors").read_text())
sys.exit(int((folder / "exit").read_text()))
"""

shown = partial(shown_with, note=NOTE)


class FakeSolver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "stowage-solve"
        self.program.write_text(FAKE.format(python=sys.executable))
        self.program.chmod(0o755)
        self.answer(ANSWER)

    def answer(self, answer: dict | str, errors: str = "", exit_code: int = 0) -> None:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        for name, content in (("answer", text), ("errors", errors), ("exit", str(exit_code))):
            (self.folder / name).write_text(content)

    def asked(self) -> dict:
        return json.loads((self.folder / "asked.json").read_text())


@pytest.fixture
def store(store: Path) -> Path:
    change_store(store, "UPDATE ops SET repeatable = 1 WHERE run_id = 2 AND op < 5")
    return store


@pytest.fixture
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSolver:
    (tmp_path / "solver").mkdir()
    fake = FakeSolver(tmp_path / "solver")
    monkeypatch.setenv("STOWAGE_SOLVE", str(fake.program))
    return fake


def op(number: int, name: str, kind: str, duration_ns: int, **fields: object) -> dict:
    lists = {key: [] for key in ("reads", "writes", "events", "after", "views", "reuses")}
    return {"id": number, "name": name, "kind": kind, "duration_ns": duration_ns, "repeatable": True, **lists, **fields}


def tensor(number: int, name: str, size_bytes: int, *flags: str) -> dict:
    return {"id": number, "name": name, "size_bytes": size_bytes, "alignment_bytes": 64,
            **{flag: flag in flags for flag in ("persistent", "output", "external")}}


def test_the_step_is_the_recorded_run(store: Path) -> None:
    with Store(str(store)) as opened:
        step = to_problem(opened, choose_run(opened, None))
    assert step == {
        "format": "stowage-step/1",
        "name": "step",
        "tensors": [
            tensor(0, "x", MIB, "persistent"), tensor(1, "w", 2 * MIB, "persistent"), tensor(2, "lr", 4, "persistent"),
            tensor(3, "a", 4 * MIB), tensor(4, "", MIB // 2), tensor(5, "b", 8 * MIB), tensor(6, "c", MIB),
            tensor(7, "d", MIB), tensor(8, "loss", 4, "output", "external"),
        ],
        "ops": [
            # The workspace is freed within the op.
            op(0, "a", "aten::matmul", 2_000_000, reads=[0, 1], events=[{"allocate": 3}, {"allocate": 4}, {"free": 4}]),
            op(1, "b", "aten::cat", 1_500_000, reads=[0], events=[{"allocate": 5}]),
            op(2, "c", "aten::mean", 40_500, reads=[3], events=[{"allocate": 6}]),
            op(3, "d", "aten::sum", 900, reads=[5], events=[{"allocate": 7}]),
            op(4, "loss", "aten::add", 800, reads=[6, 7], events=[{"allocate": 8}]),
            op(5, "w.1", "aten::sub_", 700, reads=[8], writes=[1], repeatable=False),
        ],
    }


def test_views_dependencies_and_reuses_are_taken_over(store: Path) -> None:
    # Op 2 takes a view of a, made by an op 6 that allocates nothing; d may lie where b was.
    change_store(store, """
        INSERT INTO ops (run_id, op, name, kind, scope, source, start_ns, duration_ns, repeatable)
          VALUES (2, 6, 'v', 'aten::view', '', '', 0, 5, 1), (2, 7, 'e', 'aten::relu', '', '', 0, 5, 1);
        INSERT INTO uses VALUES (2, 14, 6, 3, 'read', NULL), (2, 15, 6, 3, 'result', 0), (2, 16, 7, 3, 'read', NULL);
        INSERT INTO dependencies VALUES
          (2, 0, 7, 6, 'value'), (2, 1, 7, 0, 'value'), (2, 2, 7, 6, 'random'), (2, 3, 7, 5, 'effect');
        INSERT INTO reuses VALUES (2, 0, 3, 7, 5, 0, 9);
    """)
    with Store(str(store)) as opened:
        ops = to_problem(opened, choose_run(opened, 2))["ops"]
    assert ops[6] == op(6, "v", "aten::view", 5, reads=[3])
    # Op 0 allocates what it returns: no view of its own.
    assert ops[7] == op(7, "e", "aten::relu", 5, reads=[3], after=[6, 0, 5], views=[6])
    assert ops[3]["reuses"] == [{"output": 7, "input": 5}]


def test_the_table_and_the_plot(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    table, plot = shown(stowage, "budget", "run.db", "--points", "3").split("\n\n")[1:]
    assert table == """\
   budget       peak  of unplanned  predicted  bound  run again  status
16.00 MiB  16.00 MiB       100.0 %      1.000  1.000          0  optimal
12.00 MiB  11.00 MiB        68.7 %      1.100  1.050          2  feasible
 8.00 MiB   9.00 MiB        56.2 %      1.250  1.200         31  timed_out"""
    assert solver.asked()["arguments"] == ["budget", "--points", "3", "--json"]
    assert solver.asked()["step"]["name"] == "step"
    lines = plot.splitlines()
    assert "step: peak in MiB over predicted time, 1 is the unplanned step's" in lines[0]
    assert sum(line.count("o") for line in lines[1:]) == 3
    assert "16.0" in lines[2] and "9.0" in lines[-3] and "1.250" in lines[-1]
    assert "\033" not in plot


def test_what_stands_above_the_table(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    assert shown(stowage, "budget", "run.db").split("\n\n")[0] == """\
unplanned  16.00 MiB in 4.00 ms
least      9.00 MiB; no schedule needs less than 7.00 MiB"""
    assert solver.asked()["arguments"] == ["budget", "--points", "20", "--json"]


def test_json_is_the_answer_and_the_run(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    found = json.loads(shown(stowage, "budget", "run.db", "--json", note=""))
    assert found.pop("run")["run_id"] == 2
    assert found == ANSWER


def test_csv(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    lines = shown(stowage, "budget", "run.db", "--csv", note="").splitlines()
    assert lines[0] == ",".join(ROWS[0])
    assert lines[1:] == [",".join(map(str, row.values())) for row in ROWS]


@pytest.mark.parametrize(("option", "value"), [("--budget", "12MiB"), ("--budget", "0.75"), ("--slowdown", "1.1")])
def test_one_row(stowage: Stowage, store: Path, solver: FakeSolver, option: str, value: str) -> None:
    solver.answer({**ANSWER, "rows": ROWS[1:2]})
    text = shown(stowage, "budget", "run.db", option, value)
    assert solver.asked()["arguments"] == ["budget", option, value, "--json"]
    assert len(text.splitlines()) == 5  # no plot of a single point


@pytest.mark.parametrize(("bound_bytes", "how"), [(7 * MIB, "and none is below 7.00 MiB"), (9 * MIB, "which is proven")])
def test_a_budget_that_cannot_be_met(stowage: Stowage, store: Path, solver: FakeSolver, bound_bytes: int,
                                     how: str) -> None:
    solver.answer({**ANSWER, "rows": ROWS[2:], "bound_peak_bytes": bound_bytes})
    result = stowage("budget", "run.db", "--budget", "8MiB")
    assert result.returncode == 1
    assert result.stderr == f"{NOTE}stowage: cannot meet the budget of 8.00 MiB: the least peak found is 9.00 MiB, {how}\n"
    assert "31  timed_out" in result.stdout


def test_it_plans_from_the_newest_run_of_the_graph_as_written(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    # Run 3 is newer, and of the graph that a budget has made.
    change_store(store, "INSERT INTO ops (run_id, op, name, kind, scope, source, start_ns, duration_ns, repeatable, "
                        "program_op) VALUES (3, 0, 'a', 'aten::relu', '', '', 0, 5, 1, 0)")
    assert json.loads(shown(stowage, "budget", "run.db", "--json", note=""))["run"]["run_id"] == 2
    result = stowage("budget", "run.db", "--run", "3")
    assert (result.returncode, result.stdout, result.stderr) == (
        1, "", "stowage: cannot plan run 3 of store 'run.db' within a budget: it is of a graph that a budget has made; "
               "choose the run of the graph as it was written\n")


@pytest.mark.parametrize(("script", "run", "reason"), [
    ("UPDATE runs SET kind = 'step' WHERE id = 2", "2",
     "it is a step of a loop, in which nothing moves or runs again; capture the step with stowage.capture"),
    ("", "1", "it ended early; profile again"),
    ("UPDATE runs SET dropped_records = 7 WHERE id = 2", "2", "7 records dropped; profile again"),
    ("UPDATE ops SET repeatable = 0", "2",
     "none of its ops is known to be repeatable; profile again, as runs of older versions do not say"),
])
def test_a_run_that_cannot_be_planned(stowage: Stowage, store: Path, solver: FakeSolver, script: str, run: str,
                                      reason: str) -> None:
    change_store(store, script)
    result = stowage("budget", "run.db", "--run", run)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"stowage: cannot plan run {run} of store 'run.db' within a budget: {reason}\n"


@pytest.mark.parametrize(("script", "error"), [
    ("DELETE FROM runs", "cannot choose a run of store 'run.db': it has none; profile a run into it first"),
    ("UPDATE runs SET complete = 0", "cannot plan store 'run.db' within a budget: it has no run to plan from; of run 3, "
                                     "it ended early; profile again"),
])
def test_a_store_with_nothing_to_plan(stowage: Stowage, store: Path, solver: FakeSolver, script: str, error: str) -> None:
    change_store(store, f"PRAGMA foreign_keys = ON; {script}")
    result = stowage("budget", "run.db")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"stowage: {error}\n")


def test_no_store(stowage: Stowage, solver: FakeSolver) -> None:
    result = stowage("budget", "none.db")
    assert (result.returncode, result.stderr) == (1, "stowage: cannot open store 'none.db': no such file; check the path\n")


def test_no_solver(stowage: Stowage, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWAGE_SOLVE", "nowhere/stowage-solve")
    result = stowage("budget", "run.db")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == ("stowage: cannot plan: 'nowhere/stowage-solve' not found; install stowage again, or set "
                             "STOWAGE_SOLVE to the program\n")


def test_the_solver_refuses(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    solver.answer("", "stowage-solve: --budget: 'six' is no size; give 6GiB or 0.5\n", 2)
    result = stowage("budget", "run.db", "--budget", "six")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "stowage: cannot plan 'step': --budget: 'six' is no size; give 6GiB or 0.5\n"


def test_the_solver_is_another(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    solver.answer("no JSON")
    result = stowage("budget", "run.db")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (f"stowage: cannot plan 'step': '{solver.program}' did not answer in JSON; use the one of this "
                             "stowage\n")


def test_two_limits_are_a_usage_error(stowage: Stowage, store: Path, solver: FakeSolver) -> None:
    result = stowage("budget", "run.db", "--budget", "0.5", "--slowdown", "1.1")
    assert result.returncode == 2
    assert "--budget and --slowdown exclude one another; give one" in " ".join(result.stderr.split())


def test_it_needs_no_torch(stowage_process: Stowage, store: Path, solver: FakeSolver) -> None:
    assert json.loads(stowage_process("budget", "run.db", "--json").stdout)["name"] == "step"
