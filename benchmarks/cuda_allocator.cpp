// SPDX-License-Identifier: Apache-2.0
//
// What an allocation and its free cost on CUDA: of PyTorch's caching allocator, where it serves them from its cache,
// and of a planned run. Both make the same requests through the interface that tensors use. The device does not matter:
// neither asks it for anything.
#include "plugin/cuda_allocator.h"

#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "plugin/torch_headers.h"

namespace {

using stowage::PlannedAllocator;
using stowage::PlannedSession;
using stowage::Slot;
using stowage::SlotTable;

/// The sizes of a step: `count` tensors, from small ones to feature maps, as batch norm and convolution alternate.
std::vector<std::int64_t> step_sizes(std::int64_t count) {
  std::mt19937 random(1);
  std::vector<std::int64_t> sizes;
  for (std::int64_t tensor = 0; tensor < count; ++tensor) {
    const bool is_small = tensor % 3 == 0;
    const std::int64_t blocks = is_small ? 1 + random() % 16 : 256 + random() % 16384;
    sizes.push_back(blocks * 512);
  }
  return sizes;
}

/// Allocates all, then frees all, first the last: `range(0)` are live at once.
void allocate_and_free(benchmark::State& state, c10::Allocator& allocator, PlannedSession* session) {
  const std::vector<std::int64_t> sizes = step_sizes(state.range(0));
  std::vector<c10::DataPtr> live(sizes.size());
  auto step = [&] {
    for (std::size_t tensor = 0; tensor < sizes.size(); ++tensor) {
      if (session != nullptr) session->enter_op(static_cast<std::int32_t>(tensor));
      live[tensor] = allocator.allocate(static_cast<std::size_t>(sizes[tensor]));
    }
    for (auto tensor = live.rbegin(); tensor != live.rend(); ++tensor) tensor->clear();
  };
  step();  // fills the native allocator's cache
  for (auto _ : state) step();
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

c10::cuda::CUDACachingAllocator::CUDAAllocator* g_native = nullptr;  // as it was before stowage

void Native(benchmark::State& state) {
  allocate_and_free(state, *g_native, /*session=*/nullptr);
  g_native->emptyCache({0, 0});
}

void Planned(benchmark::State& state) {
  SlotTable table;
  for (const std::int64_t size_bytes : step_sizes(state.range(0))) {
    table.first_slot.push_back(static_cast<std::int32_t>(table.slots.size()));
    table.slots.push_back({table.arena_bytes, size_bytes});
    table.arena_bytes += size_bytes;
  }
  table.first_slot.push_back(static_cast<std::int32_t>(table.slots.size()));
  PlannedAllocator& planned = stowage::cuda_allocator(0);
  planned.reserve_arena(table);
  {
    PlannedSession session(planned, table);
    allocate_and_free(state, *c10::cuda::CUDACachingAllocator::get(), &session);
    if (session.counters().hits.allocations == 0) state.SkipWithError("nothing was served from the arena");
  }
  planned.release_arena();
}

BENCHMARK(Native)->Arg(1)->Arg(32)->Arg(256);
BENCHMARK(Planned)->Arg(1)->Arg(32)->Arg(256);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  g_native = c10::cuda::CUDACachingAllocator::get();
  g_native->init(c10::cuda::device_count());
  if (const std::string why_not = stowage::install_cuda_allocator(); !why_not.empty()) {
    std::cerr << why_not << '\n';
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
