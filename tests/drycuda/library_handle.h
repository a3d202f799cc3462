// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace drycuda {

/// A handle of cuBLAS or cuDNN. Descriptors are made of it too, as nobody looks inside.
struct LibraryHandle {
  cudaStream_t stream = nullptr;
};

template <typename Handle>
void make_handle(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new LibraryHandle);
}

template <typename Handle>
LibraryHandle& library_handle(Handle handle) {
  return *reinterpret_cast<LibraryHandle*>(handle);
}

}  // namespace drycuda

/// A library's computation: a kernel of the call's name on the handle's stream. Called by generated stubs too.
extern "C" int drycuda_library_launch(void* handle, const char* name);
