// SPDX-License-Identifier: Apache-2.0
#include "solver/layout_race.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <system_error>
#include <thread>

namespace stowage::solver {
namespace {

struct Strategy {
  std::string_view ranking;
  bool is_blurred;
};

// Those that solve most hard problems with the fewest nodes come first.
constexpr std::array<Strategy, 8> kStrategies = {{{"TWA", false},
                                                  {"WAT", false},
                                                  {"TAW", false},
                                                  {"CAT", false},
                                                  {"AWT", false},
                                                  {"CAT", true},
                                                  {"TWA", true},
                                                  {"WAT", true}}};

/// Starting a thread costs about as much as this many nodes.
constexpr std::int64_t kNodesWorthAThread = 500;

}  // namespace

LayoutRace::LayoutRace(const LayoutModel& model, int thread_count) : thread_count_(thread_count) {
  for (const Strategy& strategy : kStrategies) {
    searches_.push_back(std::make_unique<FitSearch>(model, strategy.ranking));
  }
}

int LayoutRace::search_count() { return static_cast<int>(kStrategies.size()); }

FitResult LayoutRace::run(std::int64_t capacity, std::int64_t nodes_each, std::uint32_t seed,
                          std::chrono::steady_clock::time_point deadline) {
  std::array<FitResult, kStrategies.size()> results;
  results.fill(FitResult::kStopped);
  std::array<std::atomic<bool>, kStrategies.size()> cancelled{};
  std::atomic<int> next = 0;
  const auto work = [&] {
    for (int index = next++; index < search_count(); index = next++) {
      if (cancelled[index]) continue;
      if (kStrategies[index].is_blurred) searches_[index]->reseed(seed);
      results[index] = searches_[index]->run(
          capacity, {.node_limit = nodes_each, .deadline = deadline, .cancelled = &cancelled[index]});
      if (results[index] == FitResult::kStopped) continue;
      for (int later = index + 1; later < search_count(); ++later) cancelled[later] = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    const int thread_count = nodes_each < kNodesWorthAThread ? 1 : std::min(thread_count_, search_count());
    try {
      for (int thread = 1; thread < thread_count; ++thread) threads.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads to be had: those that run, this one at least, do it all.
    }
    work();
  }
  node_count_ = 0;
  winner_ = 0;
  while (winner_ < search_count()) {
    node_count_ += searches_[winner_]->node_count();
    if (results[winner_] != FitResult::kStopped) break;
    ++winner_;
  }
  if (winner_ == search_count()) return FitResult::kStopped;
  // How far these got, if at all, was chance.
  for (int later = winner_ + 1; later < search_count(); ++later) searches_[later]->forget();
  return results[winner_];
}

}  // namespace stowage::solver
