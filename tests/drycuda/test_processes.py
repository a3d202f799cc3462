# SPDX-License-Identifier: Apache-2.0
"""What depends on how a process was started."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TWO_DEVICES = """
import json, torch
from drycuda import control
first, second = (torch.empty(10 << 20, dtype=torch.uint8, device=f"cuda:{device}") for device in (0, 1))
second.copy_(first)
control.set_total_bytes(600 << 20, device=1)
try:
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1")
    full = None
except torch.cuda.OutOfMemoryError as error:
    full = str(error)
print(json.dumps({
    "count": torch.cuda.device_count(),
    "used": [control.used_bytes(0), control.used_bytes(1)],
    "allocated": [torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)],
    "can_access": torch.cuda.can_device_access_peer(0, 1),
    "full": full.split(".")[1].strip(),
    "found_on": torch.cuda.mem_get_info(1)[1],
    "copies": control.counts()["copies"],
    "violations": control.violations()}))
"""


def test_two_devices_have_their_own_memory(run_python):
    seen = run_python(TWO_DEVICES, DRYCUDA_DEVICES="2")
    assert seen.pop("full") == "Tried to allocate 100"
    assert seen == {"count": 2, "used": [10 << 20, 10 << 20], "allocated": [10 << 20, 10 << 20], "can_access": True,
                    "found_on": 600 << 20, "copies": 1, "violations": []}


EXPANDABLE = """
import json, torch
from drycuda import control
first = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
second = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(80 << 30, dtype=torch.uint8, device="cuda")
    failed = False
except torch.cuda.OutOfMemoryError:
    failed = True
del first
third = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
used = control.used_bytes()
del second, third
torch.cuda.empty_cache()
print(json.dumps({"failed": failed, "used": used, "left": control.used_bytes(), "violations": control.violations()}))
"""


def test_expandable_segments_run_out_grow_and_go_back(run_python):
    seen = run_python(EXPANDABLE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    used = 205 * (20 << 20)  # 4 GiB, in torch's pages for large blocks
    assert seen == {"failed": True, "used": used, "left": 0, "violations": []}


def test_the_size_of_the_device_is_an_option(run_python):
    program = "import json, torch; print(json.dumps(torch.cuda.mem_get_info()))"
    total, context = 2 << 30, 100 << 20
    assert run_python(program, DRYCUDA_TOTAL_MIB="2048", DRYCUDA_CONTEXT_MIB="100") == [total - context, total]


def test_programs_without_cuda_notice_nothing():
    result = subprocess.run([sys.executable, "-c", "print(1)"], env={**os.environ, "DRYCUDA_TRACE": "1"},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_trace_names_what_is_not_modelled():
    program = "import torch; torch.fft.rfft(torch.ones(16, device='cuda'))"
    result = subprocess.run([sys.executable, "-c", program], env={**os.environ, "DRYCUDA_TRACE": "1"},
                            stderr=subprocess.PIPE, text=True)
    assert "drycuda: default stub: cufftCreate\n" in result.stderr
    assert "CUFFT_NOT_SUPPORTED" in result.stderr


def run_script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "DRYCUDA_DIR")}
    return subprocess.run([str(ROOT / "scripts/drycuda"), *arguments], env={**without, **environment},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_script_starts_a_command_with_its_arguments():
    program = "import sys; from drycuda import control; print(control.is_present(), sys.argv[1:])"
    result = run_script(sys.executable, "-c", program, "a b", DRYCUDA_DIR=os.environ["DRYCUDA_DIR"],
                        PYTHONPATH=str(ROOT / "tests"))
    assert (result.stdout, result.stderr, result.returncode) == ("True ['a b']\n", "", 0)


def test_the_script_wants_a_command():
    result = run_script()
    assert (result.stdout, result.returncode) == ("", 2)
    assert result.stderr.startswith("usage: scripts/drycuda CMD [ARGUMENT...]")


def test_the_script_names_the_library_that_is_missing(tmp_path):
    result = run_script("true", DRYCUDA_DIR=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == (f"drycuda: cannot start: no libdrycuda.so in '{tmp_path}'; unset DRYCUDA_DIR, or build "
                             "the target drycuda there\n")


def test_control_needs_dry_cuda():
    program = "from drycuda import control; control.counts()"
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True,
                            env={**environment, "PYTHONPATH": str(ROOT / "tests")})
    assert result.stderr.splitlines()[-1] == (
        "RuntimeError: cannot control dry CUDA: it is not in this process; start it as `scripts/drycuda CMD`")
