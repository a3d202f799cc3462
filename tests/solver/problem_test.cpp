// SPDX-License-Identifier: Apache-2.0
#include "solver/problem.h"

#include <functional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/problems.h"

namespace stowage::solver {
namespace {

struct FaultCase {
  const char* name;
  std::function<void(Problem&)> spoil;
  const char* fault;
};

class ProblemFault : public testing::TestWithParam<FaultCase> {};

TEST_P(ProblemFault, IsNamed) {
  Problem problem = chain();
  ASSERT_EQ(find_fault(problem), std::nullopt);
  GetParam().spoil(problem);
  EXPECT_EQ(find_fault(problem), GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(
    All, ProblemFault,
    testing::Values(FaultCase{"NegativeSize", [](Problem& p) { p.tensors[1].size_bytes = -10; },
                              "tensor 1 '' has a negative size of -10 B"},
                    FaultCase{"OddAlignment", [](Problem& p) { p.tensors[1].alignment_bytes = 3; },
                              "tensor 1 '' has an alignment of 3 B; it must be a power of two"},
                    FaultCase{"HugeSize", [](Problem& p) { p.tensors[1].size_bytes = std::int64_t{1} << 62; },
                              "tensor 1 '' is larger than 2^62 B"},
                    FaultCase{
                        "HugeSum",
                        [](Problem& p) { p.tensors[1].size_bytes = p.tensors[2].size_bytes = std::int64_t{1} << 61; },
                        "the sizes up to tensor 2 '' sum to 2^62 B or more"},
                    FaultCase{"AfterItself", [](Problem& p) { p.ops[1].after = {1}; },
                              "op 1 'b': 'after' names op 1, which is not an earlier op"},
                    FaultCase{"ReadOutOfRange", [](Problem& p) { p.ops[1].reads = {4}; },
                              "op 1 'b': 'reads' names tensor 4, but there are only 4 tensors"},
                    FaultCase{"ReadTooEarly", [](Problem& p) { p.ops[0].reads = {2}; },
                              "op 0 'a': 'reads' names tensor 2 '', which no op allocates before it"},
                    FaultCase{"WriteTooEarly", [](Problem& p) { p.ops[0].writes = {3}; },
                              "op 0 'a': 'writes' names tensor 3 '', which no op allocates before it"},
                    FaultCase{"AllocatedTwice", [](Problem& p) { p.ops[2].events.push_back(allocate(1)); },
                              "op 2 'c': allocates tensor 1 '', which op 0 allocates too"},
                    FaultCase{"AllocatedPersistent", [](Problem& p) { p.ops[2].events.push_back(allocate(0)); },
                              "op 2 'c': allocates tensor 0 '', which is persistent"},
                    FaultCase{"NeverAllocated", [](Problem& p) { p.tensors.push_back(bytes(1)); },
                              "tensor 4 '' is not persistent and no op allocates it"},
                    FaultCase{"FreedByAnother", [](Problem& p) { p.ops[2].events.push_back(free(1)); },
                              "op 2 'c': frees tensor 1 '', which it has not allocated"},
                    FaultCase{"FreedTwice",
                              [](Problem& p) {
                                p.ops[1].events = {allocate(2), free(2), free(2)};
                              },
                              "op 1 'b': frees tensor 2 '', which is free already"},
                    FaultCase{"FreedOutput", [](Problem& p) { p.ops[2].events.push_back(free(3)); },
                              "op 2 'c': frees tensor 3 '', which is an output"},
                    FaultCase{"UsedWorkspace", [](Problem& p) { p.ops[1].events.push_back(free(2)); },
                              "op 2 'c': 'reads' names tensor 2 '', which is workspace of op 1"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Problem, CheckThrowsWithTheName) {
  Problem problem = chain();
  problem.tensors[1].size_bytes = -1;
  EXPECT_THAT([&] { check(problem); }, testing::ThrowsMessage<std::invalid_argument>(
                                           "cannot plan 'chain': tensor 1 '' has a negative size of -1 B"));
}

}  // namespace
}  // namespace stowage::solver
