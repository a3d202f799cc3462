# SPDX-License-Identifier: Apache-2.0
"""torch and the dry CUPTI: what it records of a step, and torch.profiler before and after another client."""
import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import cupti_client as client
import cupti_control as control

if not hasattr(ctypes.CDLL(None), "drycupti_reset"):
    pytest.skip("needs the dry CUPTI: run under scripts/drycuda", allow_module_level=True)

import torch
from torch.profiler import ProfilerActivity, profile

ALL = (client.MEMCPY, client.MEMSET, client.RUNTIME, client.CONCURRENT_KERNEL, client.EXTERNAL_CORRELATION,
       client.MEMORY2)
WEIGHTS = torch.zeros(64, 64, device="cuda")


def multiply():
    (WEIGHTS @ WEIGHTS).relu_()
    torch.cuda.synchronize()


def profiled():
    """What torch.profiler says of `multiply`: the kernels, and the device's time in each op."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        multiply()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return kernels, {op.key: op.self_device_time_total for op in profiler.key_averages()}


def in_new_process(script, **variables):
    """Runs `script` after this module's imports; what it printed."""
    head = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_cupti import *\n"
    done = subprocess.run([sys.executable, "-c", head + script], env=os.environ | variables, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(autouse=True)
def leaves_nothing_enabled():
    yield
    control.refuse_enable(0)
    control.drop_records(0)
    control.wrong_size_of(-1)
    assert not any(control.is_enabled(kind) for kind in ALL)
    assert control.buffers_held() == 0


def test_torch_profiler_sees_kernels_and_the_ops_that_launched_them():
    kernels, device_us = profiled()
    assert len(kernels) == 2
    assert device_us["aten::mm"] > 0
    assert device_us["aten::clamp_min_"] > 0


def test_client_sees_the_kernels_of_an_op():
    with client.Client(client.CONCURRENT_KERNEL, client.RUNTIME, client.EXTERNAL_CORRELATION) as seen:
        client.call("cuptiActivityPushExternalCorrelationId", client.CUSTOM2, ctypes.c_uint64(77))
        WEIGHTS.add(1)
        client.call("cuptiActivityPopExternalCorrelationId", client.CUSTOM2, None)
        WEIGHTS.add(1)
    first, second = seen.records[client.CONCURRENT_KERNEL]
    (external,) = seen.records[client.EXTERNAL_CORRELATION]
    assert (external.external_kind, external.id, external.correlation) == (client.CUSTOM2, 77, first.correlation)
    assert second.correlation > first.correlation
    assert b"elementwise_kernel" in first.name
    assert first.start < first.end <= second.start


def test_client_sees_what_torch_takes_from_the_device_and_gives_back():
    # A capture that another test breaks off keeps torch from giving memory back.
    script = """
with client.Client(client.MEMORY2) as seen:
    block = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    address = block.data_ptr()
    del block
    torch.cuda.empty_cache()
for record in seen.records[client.MEMORY2]:
    print(record.operation, record.address == address, record.size_bytes)
"""
    taken, returned = [str(client.ALLOCATION), "True", "41943040"], [str(client.RELEASE), "True", "41943040"]
    assert in_new_process(script) == taken + returned


def test_torch_profiler_works_after_a_client_and_a_client_after_it():
    for _ in range(2):
        with client.Client(*ALL) as seen:
            multiply()
        assert len(seen.records[client.CONCURRENT_KERNEL]) == 2
        kernels, _ = profiled()
        assert len(kernels) == 2


def test_torch_profiler_leaves_its_clock_to_the_next_client():
    day_ns = 86_400 * 10**9

    def first_start():
        with client.Client(client.CONCURRENT_KERNEL) as seen:
            multiply()
        return seen.records[client.CONCURRENT_KERNEL][0].start

    profiled()
    assert abs(first_start() - time.time_ns()) > day_ns, "the profiler counts ticks of the processor"
    clock = client.TimestampCallback(time.time_ns)
    client.call("cuptiActivityRegisterTimestampCallback", clock)
    assert abs(first_start() - time.time_ns()) < day_ns
    kernels, _ = profiled()
    assert len(kernels) == 2, "the profiler sets its own clock again"


def test_torch_profiler_loses_what_is_dropped():
    control.drop_records(10**6)
    assert profiled()[0] == []
    control.drop_records(0)
    assert len(profiled()[0]) == 2


def test_torch_profiler_survives_when_kinds_are_refused():
    control.refuse_enable(control.INSUFFICIENT_PRIVILEGES)
    assert profiled()[0] == []
    control.refuse_enable(0)
    assert len(profiled()[0]) == 2


def test_torch_profiler_goes_without_cuda_for_good_where_another_client_was_subscribed_first():
    script = """
handle, callback = ctypes.c_void_p(), client.SubscriberCallback(lambda *_: None)
client.call("cuptiSubscribe", ctypes.byref(handle), callback, None)
print(len(profiled()[0]))
client.call("cuptiUnsubscribe", handle)
print(len(profiled()[0]))
"""
    assert in_new_process(script) == ["0", "0"]


def without_dry_device(script, **variables):
    """Runs `script` in a process that has the dry CUPTI alone; what it printed."""
    preloaded = [path for path in re.split("[ :]", os.environ["LD_PRELOAD"]) if path.endswith("/libdrycupti.so")]
    head = "import ctypes; cupti = ctypes.CDLL(None); handle = ctypes.c_void_p()\n"
    done = subprocess.run([sys.executable, "-c", head + script], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"LD_PRELOAD": preloaded[0]} | variables)
    assert done.stderr == ""
    return done.stdout.split()


ENABLE_AND_SUBSCRIBE = "print(cupti.cuptiActivityEnable(49), cupti.cuptiSubscribe(ctypes.byref(handle), None, None))"


def test_loads_without_the_dry_device():
    assert without_dry_device(ENABLE_AND_SUBSCRIBE) == ["0", "0"]


def test_variables_refuse():
    codes = without_dry_device(ENABLE_AND_SUBSCRIBE, DRYCUPTI_ENABLE_CODE="35", DRYCUPTI_SUBSCRIBE_CODE="39")
    assert codes == ["35", "39"]


def test_variables_spoil_records():
    script = """
with client.Client(client.MEMORY2) as seen:
    blocks = [torch.empty(40 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
print(*[record.size_bytes - (40 << 20) for record in seen.records[client.MEMORY2]])
"""
    assert in_new_process(script, DRYCUPTI_DROP_RECORDS="1", DRYCUPTI_WRONG_SIZE_OF="1") == ["1", "0"]
