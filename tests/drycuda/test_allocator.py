# SPDX-License-Identifier: Apache-2.0
"""torch's own caching allocator on dry CUDA: memory that runs out, late events, graphs, and what torch reports."""

import ctypes

import pytest

from drycuda import control

torch = pytest.importorskip("torch")

MIB = 1 << 20


def reserve_nothing() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def test_the_device_is_an_h100():
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == "NVIDIA H100 80GB HBM3 (dry)"
    assert (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 132)
    assert properties.total_memory == 81559 * MIB


def test_mem_get_info_follows_the_driver():
    reserve_nothing()
    free, total = torch.cuda.mem_get_info()
    assert total - free == 512 * MIB + control.used_bytes()
    tensor = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert free - torch.cuda.mem_get_info()[0] == 100 * MIB
    assert torch.cuda.memory_reserved() <= control.used_bytes()
    del tensor


def test_running_out_raises_and_is_recovered_from():
    reserve_nothing()
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 100.00 GiB.* total capacity of 79.65 GiB"):
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    assert control.counts()["out_of_memory"] > 0
    assert torch.empty(MIB, device="cuda").sum().item() == 0


def test_running_out_frees_what_is_cached_and_tries_again():
    reserve_nothing()
    free, _ = torch.cuda.mem_get_info()
    first = torch.empty(free * 6 // 10, dtype=torch.uint8, device="cuda")
    del first  # cached
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    second = torch.empty(free * 7 // 10, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries + 1
    del second
    reserve_nothing()


def use_on(stream, tensor) -> None:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensor.add_(1)
    tensor.record_stream(stream)


def test_a_recorded_block_is_held_back_until_its_event():
    reserve_nothing()
    stream = torch.cuda.Stream()
    tensor = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    with control.held_events(), control.witness():
        use_on(stream, tensor)
        del tensor
        while_used = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        assert while_used.data_ptr() != address
        stream.synchronize()
        afterwards = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        assert afterwards.data_ptr() == address
    assert control.violations() == []


def test_the_witness_sees_memory_that_is_used_by_another_stream():
    """What an allocator that ignored record_stream would do."""
    stream = torch.cuda.Stream()
    with control.held_events(), control.witness():
        tensor = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        use_on(stream, tensor)
        address = tensor.data_ptr()
        del tensor
        library = ctypes.CDLL(None)
        library.drycuda_range_begin(ctypes.c_void_p(address), ctypes.c_uint64(1), None)
        library.drycuda_range_end(ctypes.c_void_p(address))
    (violation,) = control.violations()
    assert f"[{address:#x}, {address + 1:#x}) given out for stream 7 of device 0" in violation
    assert "still uses" in violation


def test_the_witness_sees_every_allocation():
    live = control.live_ranges()
    with control.witness():
        tensors = [torch.empty(count + 1, device="cuda") for count in range(10)]
        assert control.live_ranges() == live + 10
    torch.empty(1, device="cuda")
    del tensors  # given out by the witness, which is gone
    assert control.live_ranges() == live
    assert control.violations() == []


@pytest.mark.parametrize("freed_inside", [False, True])
def test_graphs_are_captured_and_replayed(freed_inside):
    start = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with control.witness():
        with torch.cuda.graph(graph):
            result = (start + 1) * 2
            if freed_inside:
                del result
        control.reset_counts()
        graph.replay()
        counts = control.counts()
    assert (counts["graph_launches"], counts["launches"]) == (1, 2)
    assert control.violations() == []


def test_capture_gets_driver_memory_but_gives_none_back():
    reserve_nothing()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
    counts = control.counts()
    assert counts["driver_mallocs"] > 0
    assert counts["driver_frees_while_capturing"] == 0
    assert control.violations() == []
    del result


def test_freeing_while_capturing_is_a_violation():
    cached = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    del cached
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturing|capture"):
        with torch.cuda.graph(graph):
            torch.zeros(10, device="cuda")
            runtime = ctypes.CDLL(None)
            pointer = ctypes.c_void_p()
            runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(MIB))
    assert control.violations() == ["cudaMalloc while a stream is capturing"]
    torch.cuda.synchronize()


def test_snapshots_show_the_segments():
    reserve_nothing()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        tensor = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert tensor.data_ptr() in [segment["address"] for segment in snapshot["segments"]]
    assert {"segment_alloc", "alloc"} <= {entry["action"] for entry in snapshot["device_traces"][0]}


def test_values_from_the_device_are_zero():
    tensor = torch.ones(10, device="cuda")
    assert tensor.cpu().tolist() == [0] * 10
    assert len(tensor.nonzero()) == 0
    assert control.counts()["synchronizations"] > 0
