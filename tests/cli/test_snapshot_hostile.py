# SPDX-License-Identifier: Apache-2.0
"""Case 24: pickles that would run code, fill memory or are damaged. Each ends in one line and exit 2."""

import copyreg
import json
import pickle
import resource
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from cli.sample_store import Stowage
from cli.snapshot_files import alloc, block, case_35, event, save, segment, snapshot

from stowage.snapshots import pickles
from stowage.snapshots.explaining import Choice, explain
from stowage.snapshots.pickles import SnapshotError, load
from stowage.snapshots.reading import read_snapshot

COMMAND = b"echo > ran"
PLAIN = "a snapshot of torch holds numbers, text, lists and dictionaries only; do not trust this file"
ARGUMENT = b"\x8c" + bytes([len(COMMAND)]) + COMMAND + b"\x85"  # a tuple of it


def text(word: bytes) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word


class Reduced:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os
        return os.system, (COMMAND.decode(),)


HOSTILE = {
    "global": (b"cos\nsystem\n(S'" + COMMAND + b"'\ntR.", "GLOBAL at byte 0 asks for os.system"),
    "stack_global": (b"\x80\x04" + text(b"os") + text(b"system") + b"\x93" + ARGUMENT + b"R.",
                     "STACK_GLOBAL at byte 14 asks for os.system"),
    "global_of_builtins": (b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.",
                           "GLOBAL at byte 2 asks for __builtin__.eval"),
    "inst": (b"(S'" + COMMAND + b"'\nios\nsystem\n.", "INST at byte 15 asks for os.system"),
    "obj": (b"(cos\nsystem\nS'" + COMMAND + b"'\no.", "GLOBAL at byte 1 asks for os.system"),
    "obj_of_text": (b"(" + text(b"os.system") + ARGUMENT + b"o.", "OBJ at byte 25 asks for an object"),
    "newobj": (b"\x80\x02cos\nsystem\n" + ARGUMENT + b"\x81.", "GLOBAL at byte 2 asks for os.system"),
    "newobj_of_text": (b"\x80\x04" + text(b"os.system") + ARGUMENT + b"\x81.", "NEWOBJ at byte 26 asks for an object"),
    "newobj_ex_of_text": (b"\x80\x04" + text(b"os.system") + ARGUMENT + b"}\x92.",
                          "NEWOBJ_EX at byte 27 asks for an object"),
    "reduce_of_text": (b"\x80\x04" + text(b"os.system") + ARGUMENT + b"R.", "REDUCE at byte 26 asks for an object"),
    "reduce_of_a_number": (b"\x80\x04K\x01)R.", "REDUCE at byte 5 asks for an object"),
    "extension": (b"\x80\x02\x82\xf0.", "EXT1 at byte 2 asks for os.system"),
    "unknown_extension": (b"\x80\x02\x84\xff\xff\x00\x00.", "EXT4 at byte 2 asks for an object"),
    "persistent_id": (b"Pos.system\n.", "PERSID at byte 0 asks for a persistent object"),
    "binary_persistent_id": (b"\x80\x02" + text(b"os.system") + b"Q.", "BINPERSID at byte 13 asks for a persistent object"),
    "build": (b"\x80\x02]}" + text(b"append") + ARGUMENT + b"sb.", "BUILD at byte 26 asks for an object"),
    "build_of_slots": (b"\x80\x02}N}" + text(b"__class__") + text(b"x") + b"s\x86b.", "BUILD at byte 21 asks for an object"),
    "buffer": (b"\x80\x05\x97.", "NEXT_BUFFER at byte 2 asks for an object"),
    "inside_a_snapshot": (pickle.dumps(snapshot([segment(0, 512, block(0, 512, Reduced()))], [])), "asks for posix.system"),
}


@pytest.fixture
def extension() -> Any:
    """A program that registers a function under a number lets pickles ask for it in three bytes."""
    copyreg.add_extension("os", "system", 0xF0)
    yield
    copyreg.remove_extension("os", "system", 0xF0)


def refused(stowage: Stowage, tmp_path: Path, content: bytes) -> str:
    (tmp_path / "x.pickle").write_bytes(content)
    result = stowage("snapshot", "x.pickle")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith("\n") and result.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    return result.stderr.removeprefix("stowage: cannot read snapshot 'x.pickle': ").removesuffix("\n")


@pytest.mark.parametrize("name", HOSTILE)
def test_case_24_no_code_is_run(stowage: Stowage, tmp_path: Path, extension: None, name: str) -> None:
    content, found = HOSTILE[name]
    said = refused(stowage, tmp_path, content)
    assert found in said
    assert said.startswith("opcode ") and said.endswith(f", which could run code; {PLAIN}")


def test_case_24_the_payload_of_these_tests_runs_where_it_is_let(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["stack_global"][0])
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [
    b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of 2^31 entries
    b"\x80\x04]r\xff\xff\xff\xff.",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # so long a bytearray
])
def test_case_24_a_bomb_fills_no_memory(stowage: Stowage, tmp_path: Path, content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refused(stowage, tmp_path, content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB
    assert said.startswith(("it asks for more memory than", "it is cut short"))
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_case_24_deep_nesting(stowage: Stowage, tmp_path: Path) -> None:
    assert refused(stowage, tmp_path, b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".").startswith("it holds a list")
    frames = b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."
    assert refused(stowage, tmp_path, frames).startswith("it holds a tuple")


def test_case_24_a_list_that_is_there_many_times(stowage: Stowage, tmp_path: Path) -> None:
    """Each of 1000 devices would have the same 100,000 events."""
    history = [alloc(number, 512) for number in range(1000)]
    said = refused(stowage, tmp_path, pickle.dumps(snapshot([], *[history] * 1000)))
    assert said.startswith("it holds one list in two places where torch has two lists; ")


def test_case_24_frames_that_go_round(stowage: Stowage, tmp_path: Path) -> None:
    frames: list[Any] = []
    frames.append(frames)
    frames.append({"filename": frames, "line": frames, "name": frames})
    save(tmp_path / "x.pickle", snapshot([], [{**alloc(0, 512), "frames": frames}]))
    result = stowage("snapshot", "x.pickle", "--json", "--no-plan")
    assert json.loads(result.stdout)["devices"][0]["peak"]["call_sites"] == [
        {"call_site": "inside torch", "size_bytes": 512, "blocks": 1}]


@pytest.mark.parametrize("protocol", range(6))
def test_case_24_integers_of_nine_bytes_are_read(stowage: Stowage, tmp_path: Path, protocol: int) -> None:
    far = 1 << 68
    value = snapshot([segment(far, 1024, block(far, 512, 100))], [alloc(far + 512, 20)])
    save(tmp_path / "x.pickle", value, protocol)
    result = stowage("snapshot", "x.pickle", "--json", "--no-plan")
    assert (result.returncode, json.loads(result.stdout)["devices"][0]["peak"]["live_bytes"]) == (0, 120)
    assert load(str(tmp_path / "x.pickle")) == value


def test_case_24_sizes_beyond_any_device_are_shown(stowage: Stowage, tmp_path: Path) -> None:
    save(tmp_path / "x.pickle", snapshot([], [alloc(0, 1 << 100), alloc(1, 5)]))
    result = stowage("snapshot", "x.pickle", "--json")
    assert result.returncode == 0
    plan = json.loads(result.stdout)["devices"][0]["plan"]
    assert plan["replay"]["most_reserved_bytes"] == (1 << 100) + (2 << 20)
    assert plan["layout"] is None and plan["why_no_layout"].startswith("cannot plan")


def test_case_24_an_event_that_is_there_many_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes of the file make each, and what is made of them counts too."""
    monkeypatch.setattr(pickles, "_START_BYTES", 16 << 20)
    monkeypatch.setattr(pickles, "_MOST_TIMES", 2)
    path = save(tmp_path / "x.pickle", snapshot([], [alloc(0, 512)] * 3_000_000))
    with pytest.raises(SnapshotError, match="it asks for more memory than a snapshot of "):
        read_snapshot(str(path))


def test_case_24_many_failures_take_no_longer_than_their_number(tmp_path: Path) -> None:
    history = [event(action, number, 512) for number in range(20_000) for action in ("oom", "segment_alloc")]
    [trace] = read_snapshot(str(save(tmp_path / "x.pickle", snapshot([segment(0, 20_000 * 512)], history))))
    start = time.process_time()
    assert explain(trace, "x", Choice(plan=False))["ran_out"][9]["reserved_bytes"] == 9 * 512
    assert time.process_time() - start < 5


def test_case_24_integers_of_any_length_are_read(tmp_path: Path) -> None:
    assert load(str(save(tmp_path / "x.pickle", 3 << 9000))) == 3 << 9000


@pytest.mark.parametrize(("number", "said"), [
    (1 << 200, "event 0 of device 0 is not as torch writes it"), (-1, "event 0 of device 0 is not as torch writes it"),
    (True, "event 0 of device 0 is not as torch writes it"), ("20", "event 0 of device 0 is not as torch writes it"),
])
def test_case_24_sizes_that_are_none(stowage: Stowage, tmp_path: Path, number: Any, said: str) -> None:
    assert refused(stowage, tmp_path, pickle.dumps(snapshot([], [alloc(0, number)]))) == (
        f"{said}; choose a file of torch.cuda.memory._dump_snapshot")


@pytest.mark.parametrize(("value", "said"), [
    (3, "it holds a int, no snapshot"), ({}, "the snapshot has no list 'segments'"),
    ({"segments": []}, "no device has memory or a history in it"), ({"segments": [3]}, "segment 0 has no number 'address'"),
    (snapshot([], [3]), "event 0 of device 0 is not as torch writes it"),
    (snapshot([], [{"action": "alloc"}]), "event 0 of device 0 is not as torch writes it"),
    (snapshot([], [{"action": "free_completed", "addr": [], "size": 3}]), "event 0 of device 0 is not as torch writes it"),
    (snapshot([segment(0, 512, {**block(0, 512, 5), "state": "odd"})]), "block 0 of segment 0 has the unknown state 'odd'"),
    (snapshot([{**segment(0, 512), "total_size": None}]), "segment 0 has no number 'total_size'"),
])
def test_case_24_what_is_no_snapshot(stowage: Stowage, tmp_path: Path, value: Any, said: str) -> None:
    assert refused(stowage, tmp_path, pickle.dumps(value)) == f"{said}; choose a file of torch.cuda.memory._dump_snapshot"


@pytest.mark.parametrize("protocol", range(6))
def test_case_24_every_cut_is_told(stowage: Stowage, tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps(case_35(), protocol)
    for end in range(0, len(content), 7):
        said = refused(stowage, tmp_path, content[:end])
        assert said == "it is empty; take the snapshot again" if end == 0 else "cut short" in said, said


@pytest.mark.parametrize(("content", "said"), [
    (b"\xff\xfe", "it is no pickle, or a damaged one: byte 0 is no opcode; choose a file of "
                  "torch.cuda.memory._dump_snapshot"),
    (b"\x80\x09.", "it is damaged: unsupported pickle protocol: 9; copy it again or take the snapshot again"),
    (b"\x80\x04h\x05.", "it is damaged: Memo value not found at index 5; copy it again or take the snapshot again"),
])
def test_case_24_damaged(stowage: Stowage, tmp_path: Path, content: bytes, said: str) -> None:
    assert refused(stowage, tmp_path, content) == said


def test_case_24_files_that_are_not_there(stowage: Stowage, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, said in (("none.pickle", "No such file or directory; check the path"),
                       ("folder", "it is a folder; name the file in it")):
        result = stowage("snapshot", name)
        assert (result.returncode, result.stderr) == (2, f"stowage: cannot read snapshot '{name}': {said}\n")


def test_case_24_damage_at_any_byte_is_one_line_or_a_reading(tmp_path: Path) -> None:
    """Every third byte of a small snapshot is changed, to four values."""
    content = pickle.dumps(case_35(), 4)
    refusals = 0
    for at in range(0, len(content), 3):
        for value in (0, content[at] ^ 1, ord("R"), 255):
            (tmp_path / "x.pickle").write_bytes(content[:at] + bytes([value]) + content[at + 1:])
            try:
                for trace in read_snapshot(str(tmp_path / "x.pickle")):
                    explain(trace, "x", Choice(plan=False))
            except SnapshotError as error:
                refusals += 1
                assert "\n" not in str(error)
    assert refusals > len(content) // 3
