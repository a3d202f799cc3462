// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace drycuda {

/// What a call that may synchronise asks first. While a capture forbids it, that is a violation, captures are lost,
/// and the error to return comes back.
cudaError_t allow_unsafe_call(const char* call);

/// Counts memory that goes back to the driver while any stream is capturing.
void note_driver_free();

}  // namespace drycuda
