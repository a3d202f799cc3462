# SPDX-License-Identifier: Apache-2.0
"""The test runner counts what its runners report, and never takes silence for success."""

import pytest
import run_tests
from run_tests import Tally

CTEST = """<testsuite tests="4" failures="1" disabled="1" skipped="1">
  <testcase name="Order.KeepsDependencies" status="run"/>
  <testcase name="Order.IsDeterministic" status="fail"><failure message=""/></testcase>
  <testcase name="Cuda.Places" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>
  <testcase name="Order.Huge" status="disabled"><disabled message="Disabled"/></testcase>
</testsuite>"""
PYTEST = """<testsuites><testsuite errors="1" failures="1" skipped="1" tests="4">
  <testcase name="test_a"/><testcase name="test_b"><failure message="assert"/></testcase>
  <testcase name="test_c"><error message="fixture"/></testcase><testcase name="test_d"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("text", "tally"),
    [(CTEST, Tally(passed=1, failed=1, skipped=2)), (PYTEST, Tally(passed=1, failed=2, skipped=1))],
)
def test_cases_are_counted(tmp_path, text, tally):
    path = tmp_path / "results.xml"
    path.write_text(text)
    assert run_tests.read_junit(path, succeeded=False) == tally


def test_a_runner_that_dies_without_a_report_has_failed(tmp_path):
    assert run_tests.read_junit(tmp_path / "missing.xml", succeeded=False) == Tally(failed=1)


def test_a_runner_that_fails_without_a_failed_case_has_failed(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text('<testsuite><testcase name="a"/></testsuite>')
    assert run_tests.read_junit(path, succeeded=False) == Tally(passed=1, failed=1)


def test_the_closing_line():
    assert str(Tally(3, 1, 2) + Tally(passed=4)) == "7 passed, 1 failed, 2 skipped"
