# SPDX-License-Identifier: Apache-2.0
"""Training code may go on to call PyTorch's allocator: each call does what it does without stowage, in every mode."""

import pytest

#: Inside these the step runs unplanned, with one note that says so.
UNPLANNED = {"caching_allocator_enable", "cuda_graph", "use_mem_pool", "use_mem_pool_of_another_thread"}
NOTE = "'graph' runs unplanned while a CUDA graph is captured, a memory pool is in use or caching is off"
#: What PyTorch's cudaMallocAsync backend does not have.
NOT_ASYNC = {
    "memory_snapshot": "RuntimeError: Calling snapshot with backend:cudaMallocAsync is not meaningful.",
    "record_memory_history": "RuntimeError: cudaMallocAsync does not yet support recordHistory.",
    "use_mem_pool": "RuntimeError: cudaMallocAsync does not yet support createOrIncrefPool.",
    "use_mem_pool_of_another_thread": "RuntimeError: cudaMallocAsync does not yet support createOrIncrefPool.",
    "share_memory": "RuntimeError: cudaMallocAsync does not yet support shareIpcHandle.",
}
#: There the step was not reached, or was planned after all: that backend cannot turn caching off.
ASYNC_DURING = {"record_memory_history": False, "caching_allocator_enable": True,
                "use_mem_pool_of_another_thread": True}


@pytest.mark.parametrize("config", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_every_call_does_what_it_does_without_stowage(dry, run_python, config):
    plain = run_python("allocator_calls.py", "plain", PYTORCH_ALLOC_CONF=config)
    planned = run_python("allocator_calls.py", "planned", PYTORCH_ALLOC_CONF=config)
    is_async = planned["backend"] == "cudaMallocAsync"
    assert is_async == ("Async" in config)
    for name, seen in planned["calls"].items():
        result = seen.pop("result")
        assert result == plain["calls"][name].pop("result"), name
        assert result.startswith(NOT_ASYNC.get(name, "ok") if is_async else "ok"), (name, result)
        during = ASYNC_DURING.get(name, name not in UNPLANNED) if is_async else name not in UNPLANNED
        # Neither here nor without stowage: wrong uses of memory, or memory freed during a capture.
        assert seen == {"during": during, "after": True}, name
        assert plain["calls"][name] == {}, name
    assert planned["notes"] == [NOTE]
