// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "solver/layout_model.h"

namespace stowage::solver {

enum class FitResult : std::uint8_t {
  kFits,        ///< a layout was found
  kImpossible,  ///< proven: there is none
  kStopped,     ///< by the limits
};

struct FitLimits {
  std::int64_t node_limit = 0;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Another thread sets it when the answer is no longer wanted. May be null.
  const std::atomic<bool>* cancelled = nullptr;
};

/// Exact search: do the items of a model fit in a capacity? Depth first over canonical layouts: items are placed
/// bottom up, each on an item beneath it (or at 0, or where it is fixed), in order of offset, then of rank.
/// One thread at a time.
class FitSearch {
 public:
  /// `ranking` lists three keys, most important first, that say which of the items at one offset is tried first: W more
  /// steps, A more bytes times steps, T more still to be placed beside it, Z larger, C more sections.
  /// `seed` 0 takes the keys as they are, others blur them. `model` must outlive the search.
  FitSearch(const LayoutModel& model, std::string_view ranking, std::uint32_t seed = 0);

  void reseed(std::uint32_t seed);

  /// `capacity` in units of the model.
  FitResult run(std::int64_t capacity, const FitLimits& limits);

  /// Drops what earlier runs have learnt.
  void forget();

  /// By item, in units, after a run that found a layout.
  const std::vector<std::int64_t>& offsets() const { return solution_; }
  /// Of the last run: items that were placed, tried again or not.
  std::int64_t node_count() const { return node_count_; }

 private:
  static constexpr std::int64_t kUnplaced = -1;
  static constexpr std::uint32_t kAnyRanking = 0;
  static constexpr std::size_t kRankingLength = 3;

  /// Of items and where they could be placed: a sum of random numbers, one for each pair. It stands for them in proofs:
  /// in 10^12 comparisons, the chance that one takes a group for another is below 10^-26.
  struct Digest {
    std::uint64_t first = 0;
    std::uint64_t second = 0;

    bool operator==(const Digest&) const = default;
    Digest operator+(const Digest& other) const { return {first + other.first, second + other.second}; }
    Digest operator-(const Digest& other) const { return {first - other.first, second - other.second}; }
  };
  struct Change {
    std::int32_t item;
    std::int64_t lowest;
    std::int64_t release;
    Digest digest;
  };
  struct SectionChange {
    std::int32_t section;
    std::int64_t height;
    std::int64_t height_offset;
  };
  /// How far `changes_` and `section_changes_` had grown.
  struct Mark {
    std::size_t change_count;
    std::size_t section_change_count;
  };
  struct Release {
    std::int64_t offset;
    std::int64_t size;
    std::int32_t item;
  };
  struct Candidate {
    std::int64_t offset;
    std::int32_t rank;
    std::int32_t item;
  };
  /// Items still to be placed: a range of `stack_`, by rank.
  struct Group {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t first_section = 0;
    std::int32_t end_section = 0;
    std::uint32_t ranking_id = 0;
    bool has_skipped = false;  ///< from the start items are not to be placed where they could be
    Digest digest;
  };
  /// What was placed last: nothing after it is lower in this order.
  struct Last {
    std::int64_t offset = 0;
    std::int32_t rank = -1;
  };
  /// A group that was proven not to fit, whatever follows `last`.
  struct DeadEnd {
    Digest digest;
    std::int64_t offset = 0;
    std::uint32_t ranking_id = 0;
    std::int32_t rank = 0;
  };

  FitResult search(const Group& group, Last last);
  FitResult try_item(const Group& group, const Candidate& candidate);
  FitResult search_rest(const Group& group, const Candidate& candidate, const Digest& digest);
  FitResult search_part(std::int32_t first_section, std::int32_t end_section, std::size_t begin, std::size_t end,
                        std::int64_t offset);
  bool place(const Group& group, const Candidate& candidate, Digest& digest);
  Mark mark() const { return {changes_.size(), section_changes_.size()}; }
  void undo(const Mark& mark);
  bool must_stay(const Candidate& candidate);
  bool stays_in_capacity(std::int32_t section, std::int64_t offset, std::int64_t raise);
  std::int64_t find_height(std::int32_t section, std::int64_t offset);
  double find_key(char letter, std::int32_t item) const;
  void rank(std::size_t begin, std::size_t end);
  Digest find_digest(std::int32_t item) const;
  bool is_out() const;

  const LayoutModel& model_;
  const std::string_view ranking_;
  std::vector<double> blur_;        ///< by item
  std::vector<std::int32_t> twin_;  ///< by item: one just like it that is placed first, or -1
  std::int64_t capacity_ = 0;
  FitLimits limits_;
  std::int64_t node_count_ = 0;
  std::uint32_t ranking_count_ = 0;

  std::vector<std::int64_t> offset_;    ///< by item: or `kUnplaced`
  std::vector<std::int64_t> lowest_;    ///< by item: on top of everything beneath it
  std::vector<std::int64_t> release_;   ///< by item: proven lower bound of its offset, not below `lowest_`
  std::vector<Digest> digest_;          ///< by item: of it and its `lowest_`
  std::vector<std::int32_t> left_;      ///< by section: items still to be placed
  std::vector<std::int64_t> total_;     ///< by section: size still to be placed
  std::vector<std::int32_t> crossing_;  ///< by section: items to be placed that are live in the next one as well
  std::uint32_t stamp_ = 0;
  std::vector<std::uint32_t> stamp_of_;      ///< by section
  std::vector<std::int64_t> raise_;          ///< by section stamped last: how much later a release became, at most
  std::vector<std::int64_t> height_;         ///< by section: how high the items to be placed reach at least, or more
  std::vector<std::int64_t> height_offset_;  ///< by section: the offset for which that was found
  std::vector<std::int64_t> solution_;
  std::vector<std::int32_t> stack_;
  std::vector<Candidate> candidates_;
  std::vector<Change> changes_;
  std::vector<SectionChange> section_changes_;
  std::int32_t suspect_ = 0;
  IndexLists live_;  ///< as in the model, in an order that changes
  std::vector<Release> releases_;
  std::vector<std::int32_t> placed_;
  std::vector<DeadEnd> dead_ends_;
};

}  // namespace stowage::solver
