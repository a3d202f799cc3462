// SPDX-License-Identifier: Apache-2.0
#include "profiler/backend.h"

#include "tests/profiler/backend_contract.h"

namespace stowage::profiler {
namespace {

INSTANTIATE_TEST_SUITE_P(Backends, BackendContract,
                         testing::Values(BackendCase{"Cpu", make_cpu_backend, "steady_clock"}),
                         [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace stowage::profiler
