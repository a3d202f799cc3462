# SPDX-License-Identifier: Apache-2.0
"""A small part of the soak, and what the soak does when something is wrong: finds it, and makes its program small."""

import ast
import re

import pytest
from soak import soak
from soak.program import MODES, THROW_SITES, generate
from soak.shrink import shrink
from soak.source import write


def forward(text: str) -> list[str]:
    """The statements of the module's forward, but for the return."""
    (module,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [ast.unparse(statement) for statement in module.body[1].body[:-1]]


def last_program(output: str) -> str:
    return re.findall(r"(?ms)^# seed.*?(?=^seed|^\d+ programs)", output)[-1]


def test_training_is_the_same_with_plans(capsys):
    assert soak.main(["--programs", "150"]) == 0, capsys.readouterr().out


def test_most_scripted_programs_follow_plans():
    run = soak.Soak("scripted")
    run.run(range(2000, 2020), jobs=2)
    assert run.failures == {}
    assert run.count["planned"] >= 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "culprit"),
    [("wrong-op", "torch.cumsum("), ("lost-draw", "F.dropout("), ("written-tensor", "kept.append")],
)
def test_a_fault_is_found_and_its_program_made_small(monkeypatch, capsys, fault, culprit):
    monkeypatch.setattr(soak, "MOST_FAILURES", 1)
    assert soak.main(["--programs", "200", "--jobs", "1", "--mode", "eager-step", "--fault", fault]) == 1
    output = capsys.readouterr().out
    assert output.startswith("seed ")
    text = last_program(output)
    assert culprit in text
    assert len(forward(text)) <= 3, text
    assert "for step in range(1)" in text and "rows, flag = 2, 1" in text


def test_a_program_that_ends_its_process_is_reported_and_the_others_run():
    is_bad = {seed: "set_to_none=False" in write(generate(seed, "eager-step")) for seed in range(60)}
    bad, *good = next(seed for seed in is_bad if is_bad[seed]), *(seed for seed in is_bad if not is_bad[seed])
    run = soak.Soak("eager-step", "abort")
    run.run([bad, good[0]], jobs=1)
    assert run.failures == {bad: "the process died with exit code -6"}
    assert run.examined == 2


@pytest.mark.slow
def test_a_program_that_does_not_end_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(soak, "MOST_FAILURES", 1)
    arguments = ["--programs", "60", "--jobs", "1", "--mode", "eager-step", "--fault", "hang"]
    assert soak.main([*arguments, "--limit-s", "3", "--shrink-s", "0"]) == 1
    output = capsys.readouterr().out
    assert "not finished after 3 s" in output
    assert "while " in last_program(output)


def test_a_program_that_cannot_begin_is_a_failure(tmp_path, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text(write(generate(0)).replace("self.linear0 = ", "self.linear9 = "))
    assert soak.main(["--replay", str(broken)]) == 1
    assert "Module 'Net' has no attribute 'linear0'" in capsys.readouterr().out


def test_a_printed_program_runs_again(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text(write(generate(1, "eager-step")))
    assert soak.main(["--replay", str(file)]) == 0
    assert capsys.readouterr().out == "the same with plans\n"


def test_each_part_of_a_program_that_is_not_needed_goes():
    seeds = [seed for seed in range(300) if "torch.cumsum(" in write(generate(seed))][:25]
    assert len(seeds) == 25
    for seed in seeds:

        def fails(program) -> bool:
            ast.parse(write(program))
            return "torch.cumsum(" in write(program)

        smallest = shrink(generate(seed), fails, limit_s=30)
        assert len(forward(write(smallest))) == 1, write(smallest)
        assert smallest.loop == type(smallest.loop)(rows=(2,), steps=1), write(smallest)
        assert len(smallest.outputs) == 1 and smallest.width == 16


def test_what_is_needed_stays():
    program = next(program for program in map(generate, range(500)) if len(program.loop.throws) == 2)
    site = program.loop.throws[1]
    assert shrink(program, lambda smaller: site in smaller.loop.throws, limit_s=30).loop.throws == (site,)


def test_programs_depend_on_their_seed_alone():
    texts = [write(generate(seed)) for seed in range(100)]
    assert texts == [write(generate(seed)) for seed in range(100)]
    assert len(set(texts)) == 100


def test_all_kinds_of_programs_are_made():
    texts = [write(generate(seed)) for seed in range(400)]
    wanted = ["if flag", "if bool(", "for _ in", "while ", "F.dropout", "torch.rand_like", "torch.bernoulli", ".add_(",
              ".detach()", "retain_graph=True", "create_graph=True", "register_hook(kept.append)", "use_reentrant=True",
              "use_reentrant=False", "thrown by the forward", "thrown after the forward", "1 // 0",
              "thrown after the backward", "net.eval()", "set_to_none=False", "zero_grad()", "Adam(", "momentum=0.9",
              "second = ", "thread.start()", "nn.Conv2d", "nn.BatchNorm1d", "nn.LayerNorm", "nn.Embedding",
              "kept.append(output)", "if step % 2 == 1: optimizer.step()", "errors.append(error)",
              *(f"mode {mode}" for mode in MODES)]
    for what in wanted:
        assert any(what in text for text in texts), what
    assert len(THROW_SITES) == 4
