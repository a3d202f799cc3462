// SPDX-License-Identifier: Apache-2.0
#include "solver/min_cut.h"

#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace stowage::solver {
namespace {

constexpr std::int32_t kSource = FlowNetwork::kSource;
constexpr std::int32_t kSink = FlowNetwork::kSink;

TEST(MinCut, IsNothingWhereNoEdgeLeadsToTheSink) {
  FlowNetwork network;
  const std::int32_t node = network.add_node();
  network.add_edge(kSource, node, 3);
  EXPECT_EQ(network.cut(), 0);
  EXPECT_TRUE(network.is_on_source_side(node));
  EXPECT_FALSE(network.is_on_source_side(kSink));
}

TEST(MinCut, TakesFlowBackWhereAnotherPathNeedsTheEdge) {
  // The shortest path runs through the edge in the middle; the two longer ones carry more together.
  FlowNetwork network;
  const std::int32_t upper = network.add_node();
  const std::int32_t lower = network.add_node();
  const std::int32_t upper_end = network.add_node();
  const std::int32_t lower_end = network.add_node();
  network.add_edge(kSource, upper, 1);
  network.add_edge(upper, lower_end, 1);
  network.add_edge(lower_end, kSink, 1);
  network.add_edge(kSource, lower, 1);
  network.add_edge(lower, lower_end, 1);
  network.add_edge(upper, upper_end, 1);
  network.add_edge(upper_end, kSink, 1);
  EXPECT_EQ(network.cut(), 2);
}

TEST(MinCut, ForgetsOldFlowWhenCapacitiesChange) {
  FlowNetwork network;
  const std::int32_t node = network.add_node();
  const std::int32_t in = network.add_edge(kSource, node, 5);
  const std::int32_t out = network.add_edge(node, kSink, 7);
  EXPECT_EQ(network.cut(), 5);
  EXPECT_FALSE(network.is_on_source_side(node));
  network.set_capacity(in, 9);
  EXPECT_EQ(network.cut(), 7);
  EXPECT_TRUE(network.is_on_source_side(node));
  network.set_capacity(out, 9);
  EXPECT_EQ(network.cut(), 9);
  EXPECT_FALSE(network.is_on_source_side(node));  // of two least cuts, the one nearer to the source
}

TEST(MinCut, SaysSoWhereNothingMayBeCut) {
  FlowNetwork network;
  const std::int32_t node = network.add_node();
  network.add_edge(kSource, node, FlowNetwork::kUncuttable);
  network.add_edge(node, kSink, FlowNetwork::kUncuttable);
  EXPECT_GE(network.cut(), FlowNetwork::kUncuttable);
}

TEST(MinCut, EqualsTheLeastOfAllWaysToPartTheNodes) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 engine(seed);
    const auto below = [&engine](std::uint32_t limit) { return static_cast<std::int32_t>(engine() % limit); };
    struct Edge {
      std::int32_t from, to;
      std::int64_t capacity;
    };
    const std::int32_t node_count = 2 + below(7);
    std::vector<Edge> edges;
    FlowNetwork network;
    for (std::int32_t node = 2; node < node_count; ++node) network.add_node();
    for (std::int32_t count = below(24); count > 0; --count) {
      edges.push_back({below(node_count), below(node_count), below(3) == 0 ? FlowNetwork::kUncuttable : below(20)});
      network.add_edge(edges.back().from, edges.back().to, edges.back().capacity);
    }
    const auto sum_of = [&edges](std::uint32_t source_side) {
      std::int64_t sum = 0;
      for (const Edge& edge : edges) {
        const bool is_cut = (source_side >> edge.from & 1) != 0 && (source_side >> edge.to & 1) == 0;
        if (is_cut) sum = std::min(FlowNetwork::kUncuttable, sum + edge.capacity);
      }
      return sum;
    };
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::uint32_t side = 0; side < 1U << node_count; ++side) {
      if ((side & 3) == 1) least = std::min(least, sum_of(side));  // with the source, without the sink
    }
    ASSERT_EQ(std::min(network.cut(), FlowNetwork::kUncuttable), least);
    if (least == FlowNetwork::kUncuttable) continue;
    std::uint32_t side = 0;
    for (std::int32_t node = 0; node < node_count; ++node) {
      side |= network.is_on_source_side(node) ? 1U << node : 0;
    }
    EXPECT_EQ(sum_of(side), least);
  }
}

}  // namespace
}  // namespace stowage::solver
