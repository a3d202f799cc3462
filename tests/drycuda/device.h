// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace drycuda {

/// Of this thread.
int current_device();
void set_current_device(int device);

/// Keeps an error for `cudaGetLastError` on this thread, and returns it.
cudaError_t fail(cudaError_t error);

/// A device attribute, as the runtime and the driver number them alike; 0 for one that nobody needs.
int device_attribute(int attribute);

}  // namespace drycuda
