# SPDX-License-Identifier: Apache-2.0
"""What the commands print of a run on CUDA, of which CUPTI told sizes and kernels."""

import json
from functools import partial
from pathlib import Path

import pytest
from cli.sample_store import ON_CUDA, Stowage, change_store, shown_with

NOTE = ("stowage: run 2 'step' on GPU, torch 2.11.0, stowage 0.1.0, cupti, 0 records dropped, 2023-11-14 22:14:20 UTC\n"
        "stowage: CUPTI and the allocator disagree on 1 of 3 allocations\n")


@pytest.fixture
def cuda_store(store: Path) -> Path:
    change_store(store, ON_CUDA)
    return store


shown = partial(shown_with, note=NOTE)


def test_info_tells_where_the_sizes_are_from(stowage: Stowage, cuda_store: Path) -> None:
    lines = shown(stowage, "info", "run.db", note="").splitlines()
    assert lines[3:7] == [
        "device   cpu, GPU",
        "clock    steady_clock, cupti",
        "sizes    CUPTI confirms 2 of 6 allocations; CUPTI and the allocator disagree on 1 of 3 allocations",
        "dropped  12 records",
    ]


def test_info_is_silent_of_sizes_that_agree(stowage: Stowage, cuda_store: Path) -> None:
    change_store(cuda_store, "UPDATE runs SET size_mismatches = 0; DELETE FROM device_memory WHERE change = 2")
    assert shown(stowage, "info", "run.db", note="").splitlines()[5] == (
        "sizes    CUPTI confirms 2 of 6 allocations")
    change_store(cuda_store, "DELETE FROM device_memory; DELETE FROM allocations")
    assert shown(stowage, "info", "run.db", note="").splitlines()[5] == "sizes    -"


def test_ops_with_their_time_on_the_device(stowage: Stowage, cuda_store: Path) -> None:
    out = shown(stowage, "ops", "run.db", "--limit", "4", note="stowage: 4 of 6 ops; --limit 0 shows all\n" + NOTE)
    assert out == """\
step  op      time    device  allocated       freed       live  kind          name  source
   0   0   2.00 ms   1.80 ms   4.50 MiB  512.00 KiB   7.50 MiB  aten::matmul  a     net.py:7
   1   1   1.50 ms    900 ns   8.00 MiB         0 B  15.00 MiB  aten::cat     b     net.py:8
   2   2  40.50 us  40.00 us   1.00 MiB    4.00 MiB  16.00 MiB  aten::mean    c     net.py:9
   3   3    900 ns         -   1.00 MiB    8.00 MiB  13.00 MiB  aten::sum     d
"""


def test_kernels(stowage: Stowage, cuda_store: Path) -> None:
    assert shown(stowage, "kernels", "run.db") == """\
     time   share  count  op              source    kernel
  1.80 ms  90.4 %      2  0 aten::matmul  net.py:7  gemm
150.00 us   7.5 %      1  -               -         reduce
 40.00 us   2.0 %      1  2 aten::mean    net.py:9  reduce
  2.00 us   0.1 %      1  0 aten::matmul  net.py:7  split
"""


def test_json(stowage: Stowage, cuda_store: Path) -> None:
    answer = json.loads(shown(stowage, "kernels", "run.db", "--json", "--limit", "2",
                              note="stowage: 2 of 4 kernels; --limit 0 shows all\n"))
    assert answer["run"]["size_mismatches"] == 1
    assert (answer["kernel_ns"], len(answer["kernels"])) == (1_992_000, 2)
    assert answer["kernels"][0] == {"total_ns": 1_800_000, "count": 2, "op": 0, "op_kind": "aten::matmul",
                                    "op_name": "a", "source": "net.py:7", "name": "gemm"}
    assert answer["kernels"][1]["op"] is None

    ops = json.loads(shown(stowage, "ops", "run.db", "--json", note=""))["ops"]
    assert [(op["device_ns"], op["kernels"]) for op in ops] == [
        (1_803_000, 3), (900, 0), (40_000, 1), (None, None), (None, None), (None, None)]
    context = json.loads(shown(stowage, "info", "run.db", "--json", note=""))
    assert {name: context[name] for name in ("allocations", "cupti_sizes", "compared_sizes", "size_mismatches")} == {
        "allocations": 6, "cupti_sizes": 2, "compared_sizes": 3, "size_mismatches": 1}
