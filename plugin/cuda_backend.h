// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "profiler/backend.h"

namespace stowage {

/// CUPTI, shared with torch.profiler. Null where it cannot be used: `why_not` says in one line why and how to mend
/// that.
std::unique_ptr<profiler::Backend> make_cuda_backend(std::string& why_not);

}  // namespace stowage
