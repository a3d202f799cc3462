// SPDX-License-Identifier: Apache-2.0
#include "plugin/devices.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <pthread.h>

#include "plugin/cpu_allocator.h"
#include "plugin/note.h"
#include "plugin/options.h"
#ifdef STOWAGE_CUDA
#include "plugin/cuda_allocator.h"
#endif

namespace stowage {

PlannedAllocator& allocator_of([[maybe_unused]] c10::Device device) {
#ifdef STOWAGE_CUDA
  PlannedAllocator& allocator = device.is_cuda() ? cuda_allocator(device.index()) : cpu_allocator();
#else
  PlannedAllocator& allocator = cpu_allocator();
#endif
  allocator.set_poison(options().poison || options().verify);
  return allocator;
}

std::vector<PlannedAllocator*> all_allocators() {
  std::vector<PlannedAllocator*> all{&cpu_allocator()};
#ifdef STOWAGE_CUDA
  for (int device = 0; device < cuda_allocator_count(); ++device) all.push_back(&cuda_allocator(device));
#endif
  return all;
}

void install_allocators() {
  install_cpu_allocator();
  // Workers of a DataLoader are forked, maybe in a step, maybe while another thread allocates.
  static const int forks =
      pthread_atfork([] { cpu_allocator().before_fork(); }, [] { cpu_allocator().after_fork(false); },
                     [] { cpu_allocator().after_fork(true); });
  (void)forks;
#ifdef STOWAGE_CUDA
  if (const std::string why = install_cuda_allocator(); !why.empty()) {
    note(fmt::format("cannot plan CUDA memory: {}", why));
  }
#endif
}

c10::Device default_device([[maybe_unused]] c10::DeviceType type) {
#ifdef STOWAGE_CUDA
  if (type == c10::kCUDA || c10::cuda::CUDACachingAllocator::get()->initialized()) {
    return {c10::kCUDA, c10::cuda::current_device()};
  }
#endif
  return c10::kCPU;
}

std::string why_unplanned(c10::Device device) {
  if (!device.is_cuda()) return {};
#ifdef STOWAGE_CUDA
  return why_no_cuda_allocator();
#else
  return "this build of stowage plans for the CPU alone; build it with STOWAGE_BACKEND=cuda";
#endif
}

std::string describe([[maybe_unused]] c10::Device device) {
#ifdef STOWAGE_CUDA
  if (device.is_cuda()) {
    const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
    return fmt::format("{} (sm_{}{}, {} SMs)", properties.name, properties.major, properties.minor,
                       properties.multiProcessorCount);
  }
#endif
  return fmt::format("cpu ({})", at::get_cpu_capability());
}

void synchronize([[maybe_unused]] c10::Device device) {
#ifdef STOWAGE_CUDA
  if (!device.is_cuda() || !allocator_of(device).may_plan()) return;
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
#endif
}

std::int64_t alignment_bytes(c10::Device device) {
  // c10/core/alignment.h, and kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp, which sizes are rounded to as well.
  return device.is_cuda() ? 512 : 64;
}

}  // namespace stowage
