// SPDX-License-Identifier: Apache-2.0
//
// What `StepPlanner` does about the arena.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <random>
#include <utility>

#include "plugin/step_planner.h"

namespace stowage {
namespace {

/// Pieces of memory that plans are laid out around: those of at least so many bytes, of which the best choice is taken,
/// and how many at most.
constexpr std::int64_t kLeastPieces[] = {8 << 20, 2 << 20, 64 << 20, 16 << 20, 4 << 20, 32 << 20, 1 << 20, 128 << 20};
constexpr std::size_t kMostPieces = 64;
constexpr int kMostAttempts = 64;
constexpr std::chrono::milliseconds kLongest(2'000);  ///< a step waits meanwhile

}  // namespace

SlotTable StepPlanner::needed_arena() const {
  return {.slots = {}, .first_slot = {}, .arena_bytes = arena_bytes_, .cuts = cuts_};
}

std::int64_t StepPlanner::lay_out_plans(const std::vector<std::int64_t>& cuts, std::vector<StepPlan>& plans) const {
  CarriedSlots carried;
  std::int64_t arena_bytes = 0;
  plans.clear();
  for (const Phase& phase : phases_) {
    StepPlan& plan = plans.emplace_back();
    if (phase->plan.table == nullptr || !phase->record) continue;
    StepPlanOptions how = planning_options(*phase);
    how.carried = carried;
    how.cuts = cuts;
    plan = plan_step(*phase->record, how);
    if (carried.size_bytes.empty()) carried = plan.carried;
    arena_bytes = std::max(arena_bytes, plan.table->arena_bytes);
  }
  return arena_bytes;
}

SlotTable StepPlanner::before_arena() {
  std::lock_guard lock(mutex_);
  if (std::exchange(has_decided_cuts_, true)) return needed_arena();
  const std::vector<std::int64_t> spare = allocator_.spare_blocks();
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  std::vector<StepPlan> best;
  std::int64_t least_bytes = arena_bytes_;  // besides what is there anyway
  std::mt19937 random(0);
  // How full the pieces get when most is live depends on which lies beside which; nobody knows but by trying.
  for (int attempt = 0; attempt < kMostAttempts && std::chrono::steady_clock::now() < deadline; ++attempt) {
    const std::int64_t least_piece = kLeastPieces[static_cast<std::size_t>(attempt) % std::size(kLeastPieces)];
    std::vector<std::int64_t> pieces;
    for (const std::int64_t piece : spare) {
      if (piece >= least_piece && pieces.size() < kMostPieces) pieces.push_back(piece);
    }
    if (attempt >= static_cast<int>(std::size(kLeastPieces))) std::shuffle(pieces.begin(), pieces.end(), random);
    std::vector<std::int64_t> cuts;
    std::int64_t end_bytes = 0;
    for (const std::int64_t piece : pieces) cuts.push_back(end_bytes += piece);
    if (cuts.empty() || end_bytes >= arena_bytes_) continue;
    std::vector<StepPlan> plans;
    const std::int64_t besides_bytes = lay_out_plans(cuts, plans) - end_bytes;
    if (besides_bytes >= least_bytes) continue;
    least_bytes = besides_bytes;
    best = std::move(plans);
    cuts_ = std::move(cuts);
  }
  if (best.empty()) return needed_arena();
  arena_bytes_ = 0;
  carried_ = {};
  auto plan = best.begin();
  for (const Phase& phase : phases_) {
    if (plan->table != nullptr) phase->plan = std::move(*plan);
    ++plan;
    if (phase->plan.table == nullptr) continue;
    if (carried_.size_bytes.empty()) carried_ = phase->plan.carried;
    arena_bytes_ = std::max(arena_bytes_, phase->plan.table->arena_bytes);
  }
  offer_plans();
  return needed_arena();
}

}  // namespace stowage
