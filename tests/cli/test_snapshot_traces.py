# SPDX-License-Identifier: Apache-2.0
"""Traces from text files: cases 10 and 11 on the simulated allocator and in a layout, and the rows of case 24."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.sample_store import Stowage
from cli.snapshot_files import MIB, batches, case_10, interleaved

from stowage.snapshots.trace_csv import read_trace
from stowage.solving import SolverError, solver


@pytest.fixture
def planning() -> None:
    """For tests that need stowage-solve."""
    beside = Path(sys.executable).with_name("stowage-solve")
    if "STOWAGE_SOLVE" not in os.environ and beside.exists():
        return
    try:
        solver()
    except SolverError as error:
        pytest.skip(str(error))


def planned(stowage: Stowage, tmp_path: Path, trace: str, *options: str) -> Any:
    (tmp_path / "trace.csv").write_text(trace)
    result = stowage("snapshot", "trace.csv", "--plan", "--json", *options)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)["devices"][0]["plan"]


def test_case_10_a_large_block_cannot_be_made_again(stowage: Stowage, tmp_path: Path, planning: None) -> None:
    plan = planned(stowage, tmp_path, case_10(), "--capacity", "2100MiB")
    assert plan["replay"]["failed"] == {
        "event": 62, "size_bytes": 1100 * MIB, "call_site": "second", "allocated_bytes": 990 * MIB, "free_bytes": 110 * MIB,
        "largest_free_bytes": 110 * MIB, "unreserved_bytes": 1000 * MIB}
    # Sixty blocks keep the one segment, and all of them are named.
    [pin] = plan["replay"]["pinned"]
    assert (pin["segment_bytes"], pin["pinned_bytes"], pin["live_bytes"]) == (1100 * MIB, 110 * MIB, 990 * MIB)
    assert {site["call_site"] for site in pin["held_by"]} == {f"kept{number}" for number in range(60)}
    # The 60 blocks and the second large one are live at once, and fit.
    assert plan["layout"]["reserved_bytes"] == plan["layout"]["bound_bytes"] == (990 + 1100) * MIB
    assert plan["layout"]["fits"] is True


def test_case_10_told(stowage: Stowage, tmp_path: Path, planning: None) -> None:
    (tmp_path / "trace.csv").write_text(case_10())
    shown = stowage("snapshot", "trace.csv", "--capacity", "2100MiB", "--limit", "1").stdout
    assert shown == """\
device 0: 63 events, 62 blocks
peak       2.04 GiB at event 62, 2.04 GiB in the allocator's units
  before   0 B of it was live before the first event
    size  blocks  call site
1.07 GiB       1  second
outside    not known: the file does not tell what the device had in use; give it with --used

what this trace needs on a device of 2.05 GiB:
  replayed    runs out at event 62: second asks for 1.07 GiB; of 1.08 GiB that nobody uses, 1000.00 MiB is not reserved and \
the largest free block is 110.00 MiB
    110.00 MiB free in the segment of 1.07 GiB at 0x0 is pinned by 17.00 MiB kept1; 17.00 MiB kept11; 17.00 MiB kept13; \
17.00 MiB kept15; and 56 more
  expandable  2.05 GiB reserved by the simulated allocator
  planned     2.04 GiB by a layout of stowage, which fits; optimal
  bound       2.04 GiB: no layout needs less
"""


@pytest.mark.parametrize(("trace", "reserved_mib", "expandable_mib", "bound_mib"), [
    (batches((8, 16), (4, 32)), 256, 140, 128),  # expandable segments grow by 20 MiB
    (batches((4, 32), (8, 16)), 128, 140, 128),
    (interleaved(), 96, 80, 64),  # both grow: two holes of 16 MiB take no 32
])
def test_case_11_what_the_order_of_sizes_reserves(stowage: Stowage, tmp_path: Path, planning: None, trace: str,
                                                  reserved_mib: int, expandable_mib: int, bound_mib: int) -> None:
    plan = planned(stowage, tmp_path, trace)
    assert plan["replay"]["most_reserved_bytes"] == reserved_mib * MIB
    assert plan["expandable"]["most_reserved_bytes"] == expandable_mib * MIB
    assert plan["layout"]["reserved_bytes"] == plan["layout"]["bound_bytes"] == bound_mib * MIB


def test_a_stream_takes_nothing_of_another(stowage: Stowage, tmp_path: Path, planning: None) -> None:
    trace = f"alloc,a,{32 * MIB}\nfree,a\nalloc,b,{32 * MIB},7\nfree,b\nalloc,c,{5 * MIB},7\n"
    plan = planned(stowage, tmp_path, trace)
    assert plan["replay"]["most_reserved_bytes"] == 64 * MIB
    assert [(stream["stream"], stream["height_bytes"]) for stream in plan["layout"]["streams"]] == [
        (0, 32 * MIB), (7, 32 * MIB)]


@pytest.mark.parametrize(("asked", "reserved"), [
    ([1], 2 * MIB), ([MIB], 2 * MIB), ([MIB, MIB, 1], 4 * MIB), ([MIB + 1], 20 * MIB), ([10 * MIB - 512], 20 * MIB),
    ([10 * MIB - 511], 10 * MIB), ([10 * MIB + 1], 12 * MIB), ([16 * MIB + 1], 18 * MIB),
    ([2 * MIB] * 10, 20 * MIB), ([2 * MIB] * 11, 40 * MIB),
    # What is left of a large segment stays with a block unless it is more than 1 MiB.
    ([19 * MIB, 512], 20 * MIB + 2 * MIB), ([9 * MIB, 10 * MIB, MIB + 512], 40 * MIB),
    ([9 * MIB, 10 * MIB - 512, MIB + 512], 20 * MIB),
])
def test_case_11_sizes_of_segments(stowage: Stowage, tmp_path: Path, asked: list[int], reserved: int) -> None:
    (tmp_path / "trace.csv").write_text("".join(f"alloc,b{number},{size}\n" for number, size in enumerate(asked)))
    plan = json.loads(stowage("snapshot", "trace.csv", "--json").stdout)["devices"][0]["plan"]
    assert plan["replay"]["most_reserved_bytes"] == reserved


def test_without_a_solver_the_rest_is_shown(stowage: Stowage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWAGE_SOLVE", "nowhere/stowage-solve")
    (tmp_path / "trace.csv").write_text("alloc,a,512\n")
    result = stowage("snapshot", "trace.csv")
    assert result.returncode == 0
    assert "planned     - (cannot plan: 'nowhere/stowage-solve' not found" in result.stdout
    result = stowage("snapshot", "trace.csv", "--plan")
    assert (result.returncode, result.stdout) == (1, "")


def test_case_24_crlf_comments_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    plain, office = tmp_path / "plain.csv", tmp_path / "office.csv"
    plain.write_bytes(b"alloc,a,5\nfree,a\nalloc,a,7,3\n")
    office.write_bytes(b"\xef\xbb\xbf# my trace\r\nalloc,a,5\r\n\r\nfree,a\r\nalloc, a, 7, 3\r\n")
    assert read_trace(str(plain)) == read_trace(str(office))
    assert [(block.size_bytes, block.stream, block.first, block.end) for block in read_trace(str(plain)).blocks] == [
        (5, 0, 0, 1), (7, 3, 2, None)]


@pytest.mark.parametrize(("trace", "said"), [
    ("alloc,a,5\nfree,a\nfree,a\n", "row 3: column 'name': 'a' is not live; allocate it before its free"),  # ends first
    ("free,a\nalloc,a,5\n", "row 1: column 'name': 'a' is not live; allocate it before its free"),
    ("alloc,a,-4\n", "row 1: column 'bytes': '-4' is no integer from 0 to 2^62 - 1"),
    ("alloc,a,4.5\n", "row 1: column 'bytes': '4.5' is no integer from 0 to 2^62 - 1"),
    ("alloc,a,1_0\n", "row 1: column 'bytes': '1_0' is no integer from 0 to 2^62 - 1"),
    ("alloc,a,\u0663\n", "row 1: column 'bytes': '\u0663' is no integer from 0 to 2^62 - 1"),
    ("alloc,a,9223372036854775808\n", "row 1: column 'bytes': '9223372036854775808' is no integer from 0 to 2^62 - 1"),
    (f"alloc,a,{'9' * 5000}\n", f"row 1: column 'bytes': '{'9' * 40}' is no integer from 0 to 2^62 - 1"),
    ("alloc,a,5,-1\n", "row 1: column 'stream': '-1' is no integer from 0 to 2^62 - 1"),
    ("alloc,a,4611686018427387903\nalloc,b,1\n", "row 2: column 'bytes': the sizes up to this row sum to 2^62 B or more"),
    ("alloc,a,5\n\nalloc,a,5\n", "row 3: column 'name': 'a' is live, allocated in row 1; free it first"),
    ("alloc,a\n", "row 1: alloc has 2 fields; a line is alloc,NAME,BYTES[,STREAM] or free,NAME"),
    ("alloc,a,5\nfree\n", "row 2: free has 1 fields; a line is alloc,NAME,BYTES[,STREAM] or free,NAME"),
    ("id,lower,upper,size\n", "row 1: 'id' is neither alloc nor free; a line is alloc,NAME,BYTES[,STREAM] or free,NAME"),
    ("# nothing\n", "it allocates nothing; a line is alloc,NAME,BYTES[,STREAM] or free,NAME"),
    ("", "it allocates nothing; a line is alloc,NAME,BYTES[,STREAM] or free,NAME"),
])
def test_case_24_rows_are_refused(stowage: Stowage, tmp_path: Path, trace: str, said: str) -> None:
    (tmp_path / "trace.csv").write_text(trace, encoding="utf-8")
    result = stowage("snapshot", "trace.csv")
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"stowage: cannot read trace 'trace.csv': {said}\n")


def test_case_24_another_encoding(stowage: Stowage, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(b"alloc,\xff,5\n")
    assert stowage("snapshot", "trace.csv").stderr == (
        "stowage: cannot read trace 'trace.csv': it is not text; a line is alloc,NAME,BYTES[,STREAM] or free,NAME\n")
