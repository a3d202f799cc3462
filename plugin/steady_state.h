// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "profiler/record.h"

namespace stowage {

/// Whether two runs of a graph used the same tensors and made the same allocations, wherever their sizes are from.
bool are_alike(const profiler::Run& before, const profiler::Run& after);

/// The first allocation in which two runs differ, in one line.
std::string difference(const profiler::Run& before, const profiler::Run& after);

/// What CUPTI says against planning from the run; empty if nothing.
std::string why_in_doubt(const profiler::Run& run);

}  // namespace stowage
