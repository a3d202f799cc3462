// SPDX-License-Identifier: Apache-2.0
// Recorded training steps: what the solver is for.
#include <gtest/gtest.h>

#include "solver/formats.h"
#include "solver/solve.h"
#include "solver/validate.h"

namespace stowage::solver {
namespace {

struct Sums {
  std::int64_t peak_bytes;
  std::int64_t arena_bound_bytes;
};

struct Golden {
  const char* name;
  std::int64_t program_peak_bytes;
  Sums without_reuse;
  Sums with_reuse;
};

void expect_sums(const Problem& problem, const Golden& golden, const Sums& sums) {
  const Plan plan = solve(problem, {.deadline_ms = 3'600'000, .node_limit = 1'000'000});
  EXPECT_EQ(validate(problem, plan), std::nullopt);
  EXPECT_EQ(plan.program_peak_bytes, golden.program_peak_bytes);
  EXPECT_EQ(plan.peak_bytes, sums.peak_bytes);
  EXPECT_EQ(plan.order_status, Status::kOptimal);
  EXPECT_EQ(plan.arena_bound_bytes, sums.arena_bound_bytes);
  EXPECT_EQ(plan.layout_status, Status::kOptimal);
}

class Graphs : public testing::TestWithParam<Golden> {};

TEST_P(Graphs, AreOrderedBest) {
  const Golden& golden = GetParam();
  Problem problem = read_step(std::string(STOWAGE_TEST_DATA "/graphs/") + golden.name + ".json.gz");
  expect_sums(problem, golden, golden.with_reuse);
  forbid_reuse(problem);
  expect_sums(problem, golden, golden.without_reuse);
  EXPECT_LE(golden.with_reuse.peak_bytes, golden.without_reuse.peak_bytes);
}

constexpr Golden kGolden[] = {
    {"alexnet-bs1-sgdm", 736042220, {640457036, 151048256}, {640457036, 151048256}},
    {"alexnet-bs32-adam", 1137997444, {1054467812, 301989952}, {905176804, 152698944}},
    {"alexnet-bs32-sgdm", 847599588, {660773444, 152698944}, {660773444, 152698944}},
    {"efficientnet_b0-bs32-sgdm", 2885707468, {2880583468, 2818839104}, {2872719148, 2810974784}},
    {"googlenet-bs32-sgdm", 1609686444, {1601548812, 1529223232}, {1600876044, 1528550464}},
    {"mnasnet0_5-bs32-sgdm", 843114308, {837990308, 800892352}, {830125988, 793028032}},
    {"mobilenet_v2-bs1-sgdm", 114269836, {107960716, 79182976}, {107960716, 79182976}},
    {"mobilenet_v2-bs32-sgdm", 2551870340, {2546746340, 2499302848}, {2538882020, 2491438528}},
    {"resnet18-bs1-sgdm", 158260620, {125304300, 31147584}, {125304300, 31147584}},
    {"resnet18-bs32-adam", 876013348, {862685060, 703104576}, {862685060, 703104576}},
    {"resnet18-bs32-sgdm", 829255300, {815927012, 703104576}, {815927012, 703104576}},
    {"resnet50-bs1-sgdm", 370802324, {299798260, 94527040}, {299798260, 94527040}},
    {"resnet50-bs32-sgdm", 2987609996, {2979413996, 2755477056}, {2966831084, 2742894144}},
    {"squeezenet1_0-bs32-sgdm", 1197806148, {1197806148, 1168550976}, {1176302148, 1147046976}},
    {"transformer-bs32-adam", 4376854532, {4364333060, 3809480768}, {4364333060, 3809480768}},
    {"vgg16-bs1-sgdm", 1722992876, {1518621004, 411158592}, {1518621004, 411158592}},
    {"vgg16-bs32-sgdm", 3986817508, {3469364804, 2343236672}, {3466153540, 2340025408}},
    {"vit_b_16-bs32-sgdm", 4544252900, {4531730500, 3819921472}, {4493055300, 3781246272}},
};

INSTANTIATE_TEST_SUITE_P(All, Graphs, testing::ValuesIn(kGolden), [](const auto& instance) {
  std::string name = instance.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace stowage::solver
