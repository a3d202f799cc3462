// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

namespace drycuda {

/// Gives a kernel of so many blocks to a stream. The name must live as long as the process.
cudaError_t launch(cudaStream_t stream, const char* name, std::uint64_t blocks);
/// A copy of a name that lives as long as the process, one for all equal names.
const char* keep_name(const std::string& name);
/// How many blocks fit on a multiprocessor; registers are not looked at.
int resident_blocks(int block_threads, std::size_t shared_bytes);

}  // namespace drycuda
