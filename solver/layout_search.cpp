// SPDX-License-Identifier: Apache-2.0
#include "solver/layout_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <random>

namespace stowage::solver {
namespace {

/// How many groups that do not fit are remembered.
std::size_t dead_end_count(const LayoutModel& model) {
  constexpr std::size_t kMost = std::size_t{1} << 16;
  return std::min(kMost, std::bit_ceil(256 * model.items.size()));
}

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

std::int64_t round_up(std::int64_t offset, std::int64_t alignment) {
  return alignment == 1 ? offset : (offset + alignment - 1) / alignment * alignment;
}

bool is_twin(const LayoutItem& left, const LayoutItem& right) {
  return left.first_section == right.first_section && left.end_section == right.end_section &&
         left.step_count == right.step_count && left.size == right.size && left.alignment == right.alignment &&
         left.fixed_offset < 0 && right.fixed_offset < 0;
}

}  // namespace

FitSearch::FitSearch(const LayoutModel& model, std::string_view ranking, std::uint32_t seed)
    : model_(model),
      ranking_(ranking),
      blur_(model.items.size(), 1.0),
      twin_(model.items.size(), -1),
      dead_ends_(dead_end_count(model)) {
  for (std::int32_t id = 0; id < std::ssize(model.items); ++id) {
    for (const std::int32_t other : model.overlapping[id]) {
      if (other < id && is_twin(model.items[id], model.items[other])) twin_[id] = other;
    }
  }
  reseed(seed);
}

void FitSearch::reseed(std::uint32_t seed) {
  std::mt19937 engine(seed);
  for (std::size_t id = 0; id < blur_.size(); ++id) {
    blur_[id] = seed == 0 ? 1.0 : 0.75 + 0.5 * static_cast<double>(engine()) / 4294967296.0;
    if (twin_[id] >= 0) blur_[id] = blur_[twin_[id]];
  }
}

void FitSearch::forget() { std::fill(dead_ends_.begin(), dead_ends_.end(), DeadEnd{}); }

FitResult FitSearch::run(std::int64_t capacity, const FitLimits& limits) {
  if (capacity > capacity_) forget();
  capacity_ = capacity;
  limits_ = limits;
  node_count_ = 0;
  const std::size_t count = model_.items.size();
  offset_.assign(count, kUnplaced);
  solution_.assign(count, kUnplaced);
  lowest_.assign(count, 0);
  release_.assign(count, 0);
  digest_.resize(count);
  live_ = model_.live;
  suspect_ = 0;
  raise_.assign(model_.section_count, 0);
  height_.assign(model_.section_count, 0);
  height_offset_.assign(model_.section_count, 0);
  stamp_of_.assign(model_.section_count, 0);
  left_.assign(model_.section_count, 0);
  total_.assign(model_.section_count, 0);
  crossing_.assign(model_.section_count, 0);
  stack_.clear();
  candidates_.clear();
  changes_.clear();
  section_changes_.clear();
  for (std::int32_t id = 0; id < std::ssize(model_.items); ++id) {
    const LayoutItem& item = model_.items[id];
    lowest_[id] = release_[id] = std::max<std::int64_t>(item.fixed_offset, 0);
    digest_[id] = find_digest(id);
    for (std::int32_t section = item.first_section; section < item.end_section; ++section) {
      total_[section] += item.size;
      ++left_[section];
      if (section + 1 < item.end_section) ++crossing_[section];
    }
    stack_.push_back(id);
  }
  for (std::int32_t section = 0; section < model_.section_count; ++section) {
    height_[section] = find_height(section, 0);
    if (height_[section] > capacity_) return FitResult::kImpossible;
  }
  return search_part(0, model_.section_count, 0, count, 0);
}

FitSearch::Digest FitSearch::find_digest(std::int32_t item) const {
  const std::uint64_t pair =
      (static_cast<std::uint64_t>(item) + 1) * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(lowest_[item]);
  return {.first = mix(pair), .second = mix(~pair)};
}

bool FitSearch::is_out() const {
  if (node_count_ >= limits_.node_limit) return true;
  if (node_count_ % 64 != 0) return false;
  return (limits_.cancelled != nullptr && limits_.cancelled->load(std::memory_order_relaxed)) ||
         std::chrono::steady_clock::now() >= limits_.deadline;
}

double FitSearch::find_key(char letter, std::int32_t id) const {
  const LayoutItem& item = model_.items[id];
  switch (letter) {
    case 'W':
      return static_cast<double>(item.step_count);
    case 'A':
      return static_cast<double>(item.step_count) * static_cast<double>(item.size);
    case 'T':
      return static_cast<double>(
          *std::max_element(total_.begin() + item.first_section, total_.begin() + item.end_section));
    case 'Z':
      return static_cast<double>(item.size);
    default:  // 'C'
      return item.end_section - item.first_section;
  }
}

void FitSearch::rank(std::size_t begin, std::size_t end) {
  struct Keyed {
    std::array<double, kRankingLength> keys{};
    std::int32_t item;
  };
  std::vector<Keyed> keyed;
  for (std::size_t position = begin; position < end; ++position) {
    Keyed& entry = keyed.emplace_back();
    entry.item = stack_[position];
    for (std::size_t key = 0; key < kRankingLength; ++key) {
      entry.keys[key] = find_key(ranking_[key], entry.item) * blur_[entry.item];
    }
  }
  std::sort(keyed.begin(), keyed.end(), [](const Keyed& left, const Keyed& right) {
    return left.keys != right.keys ? left.keys > right.keys : left.item < right.item;
  });
  for (std::size_t position = begin; position < end; ++position) stack_[position] = keyed[position - begin].item;
}

FitResult FitSearch::search_part(std::int32_t first_section, std::int32_t end_section, std::size_t begin,
                                 std::size_t end, std::int64_t offset) {
  rank(begin, end);
  Group group{begin, end, first_section, end_section, ++ranking_count_, false, {}};
  for (std::size_t position = begin; position < end; ++position) {
    const std::int32_t item = stack_[position];
    group.digest = group.digest + digest_[item];
    group.has_skipped = group.has_skipped || (lowest_[item] == offset && release_[item] > offset);
  }
  return search(group, {.offset = offset, .rank = -1});
}

FitResult FitSearch::search(const Group& group, Last last) {
  if (group.begin == group.end) return FitResult::kFits;
  DeadEnd& dead_end = dead_ends_[group.digest.first % dead_ends_.size()];
  if (dead_end.digest == group.digest) {
    const bool is_same_ranking = dead_end.ranking_id == kAnyRanking || dead_end.ranking_id == group.ranking_id;
    if (last.offset > dead_end.offset ||
        (last.offset == dead_end.offset && is_same_ranking && last.rank >= dead_end.rank)) {
      return FitResult::kImpossible;
    }
  }
  // An item left beneath this could be dropped into place there: no need to try higher ones first.
  std::int64_t lowest_end = std::numeric_limits<std::int64_t>::max();
  for (std::size_t position = group.begin; position < group.end; ++position) {
    const std::int32_t item = stack_[position];
    lowest_end = std::min(lowest_end, lowest_[item] + model_.items[item].size);
  }
  const std::size_t first_candidate = candidates_.size();
  for (std::size_t position = group.begin; position < group.end; ++position) {
    const std::int32_t item = stack_[position];
    const auto item_rank = static_cast<std::int32_t>(position - group.begin);
    const std::int64_t offset = lowest_[item];
    if (offset >= lowest_end || offset < last.offset || release_[item] > offset) continue;
    if (offset == last.offset && item_rank < last.rank) continue;
    if (twin_[item] >= 0 && offset_[twin_[item]] == kUnplaced) continue;
    candidates_.push_back({offset, item_rank, item});
  }
  std::sort(candidates_.begin() + first_candidate, candidates_.end(),
            [](const Candidate& left, const Candidate& right) {
              return left.offset != right.offset ? left.offset < right.offset : left.rank < right.rank;
            });
  const Mark start = mark();
  const std::size_t candidate_count = candidates_.size();
  FitResult result = FitResult::kImpossible;
  for (std::size_t index = first_candidate; index < candidate_count; ++index) {
    const Candidate candidate = candidates_[index];
    result = try_item(group, candidate);
    if (result != FitResult::kImpossible || must_stay(candidate)) break;
  }
  undo(start);
  candidates_.resize(first_candidate);
  if (result == FitResult::kImpossible) {
    const std::uint32_t ranking_id = last.rank < 0 && !group.has_skipped ? kAnyRanking : group.ranking_id;
    dead_end = {group.digest, last.offset, ranking_id, last.rank};
  }
  return result;
}

FitResult FitSearch::try_item(const Group& group, const Candidate& candidate) {
  if (is_out()) return FitResult::kStopped;
  ++node_count_;
  const LayoutItem& item = model_.items[candidate.item];
  const Mark start = mark();
  Digest digest = group.digest - digest_[candidate.item];
  offset_[candidate.item] = candidate.offset;
  for (std::int32_t section = item.first_section; section < item.end_section; ++section) {
    total_[section] -= item.size;
    --left_[section];
    if (section + 1 < item.end_section) --crossing_[section];
  }
  FitResult result = FitResult::kImpossible;
  if (place(group, candidate, digest)) result = search_rest(group, candidate, digest);
  if (result == FitResult::kFits) solution_[candidate.item] = candidate.offset;
  undo(start);
  for (std::int32_t section = item.first_section; section < item.end_section; ++section) {
    total_[section] += item.size;
    ++left_[section];
    if (section + 1 < item.end_section) ++crossing_[section];
  }
  offset_[candidate.item] = kUnplaced;
  return result;
}

void FitSearch::undo(const Mark& start) {
  for (; changes_.size() > start.change_count; changes_.pop_back()) {
    const Change& change = changes_.back();
    lowest_[change.item] = change.lowest;
    release_[change.item] = change.release;
    digest_[change.item] = change.digest;
  }
  for (; section_changes_.size() > start.section_change_count; section_changes_.pop_back()) {
    const SectionChange& change = section_changes_.back();
    height_[change.section] = change.height;
    height_offset_[change.section] = change.height_offset;
  }
}

bool FitSearch::place(const Group& group, const Candidate& candidate, Digest& digest) {
  const LayoutItem& item = model_.items[candidate.item];
  const std::int64_t top = candidate.offset + item.size;
  ++stamp_;
  for (const std::int32_t other : model_.overlapping[candidate.item]) {
    if (offset_[other] != kUnplaced || lowest_[other] >= top) continue;
    const LayoutItem& raised = model_.items[other];
    if (raised.fixed_offset >= 0 && top > raised.fixed_offset) return false;
    changes_.push_back({other, lowest_[other], release_[other], digest_[other]});
    lowest_[other] = round_up(top, raised.alignment);
    release_[other] = std::max(release_[other], lowest_[other]);
    digest_[other] = find_digest(other);
    digest = digest - changes_.back().digest + digest_[other];
    const std::int64_t raise = release_[other] - changes_.back().release;
    for (std::int32_t section = raised.first_section; section < raised.end_section; ++section) {
      raise_[section] = stamp_of_[section] == stamp_ ? std::max(raise_[section], raise) : raise;
      stamp_of_[section] = stamp_;
    }
  }
  for (std::int32_t section = group.first_section; section < group.end_section; ++section) {
    if (total_[section] + candidate.offset > capacity_) return false;
  }
  const auto is_too_high = [this, &candidate](std::int32_t section) {
    return stamp_of_[section] == stamp_ && !stays_in_capacity(section, candidate.offset, raise_[section]);
  };
  // What failed last fails often again.
  if (is_too_high(suspect_)) return false;
  for (std::int32_t section = group.first_section; section < group.end_section; ++section) {
    if (section == suspect_ || !is_too_high(section)) continue;
    suspect_ = section;
    return false;
  }
  return true;
}

bool FitSearch::stays_in_capacity(std::int32_t section, std::int64_t offset, std::int64_t raise) {
  if (left_[section] == 0) return true;
  // No release grew more than this since the height was found; the height grew no more either.
  std::int64_t height = height_[section] + std::max(raise, offset - height_offset_[section]);
  if (height > capacity_) height = find_height(section, offset);
  if (height > capacity_) return false;
  section_changes_.push_back({section, height_[section], height_offset_[section]});
  height_[section] = height;
  height_offset_[section] = offset;
  return true;
}

std::int64_t FitSearch::find_height(std::int32_t section, std::int64_t offset) {
  // Kept nearly sorted by release from one call to the next, items that are placed last.
  std::int32_t* const live = live_.values.data() + live_.begin[section];
  releases_.clear();
  placed_.clear();
  std::int32_t index = 0;
  for (; std::ssize(releases_) < left_[section]; ++index) {
    const std::int32_t item = live[index];
    if (offset_[item] != kUnplaced) {
      placed_.push_back(item);
      continue;
    }
    const Release release{std::max(release_[item], offset), model_.items[item].size, item};
    std::size_t position = releases_.size();
    releases_.push_back(release);
    for (; position > 0 && releases_[position - 1].offset > release.offset; --position) {
      releases_[position] = releases_[position - 1];
    }
    releases_[position] = release;
  }
  index = 0;
  std::int64_t height = 0;
  for (const Release& release : releases_) {
    height = std::max(height, release.offset) + release.size;
    live[index++] = release.item;
  }
  std::copy(placed_.begin(), placed_.end(), live + index);
  return height;
}

bool FitSearch::must_stay(const Candidate& candidate) {
  std::int64_t release = std::numeric_limits<std::int64_t>::max();
  for (const std::int32_t other : model_.overlapping[candidate.item]) {
    if (offset_[other] != kUnplaced) continue;
    release = std::min(release, std::max(release_[other], candidate.offset) + model_.items[other].size);
  }
  const LayoutItem& item = model_.items[candidate.item];
  if (release == std::numeric_limits<std::int64_t>::max() || release + item.size > capacity_) return true;
  if (item.fixed_offset >= 0) return true;
  changes_.push_back({candidate.item, lowest_[candidate.item], release_[candidate.item], digest_[candidate.item]});
  const std::int64_t raise = release - release_[candidate.item];
  release_[candidate.item] = release;
  for (std::int32_t section = item.first_section; section < item.end_section; ++section) {
    if (!stays_in_capacity(section, candidate.offset, raise)) return true;
  }
  return false;
}

FitResult FitSearch::search_rest(const Group& group, const Candidate& candidate, const Digest& digest) {
  const LayoutItem& item = model_.items[candidate.item];
  const std::size_t begin = stack_.size();
  for (std::size_t position = group.begin; position < group.end; ++position) {
    if (stack_[position] != candidate.item) stack_.push_back(stack_[position]);
  }
  std::int32_t cut = -1;
  for (std::int32_t section = item.first_section; section + 1 < item.end_section && cut < 0; ++section) {
    if (crossing_[section] == 0) cut = section;
  }
  FitResult result = FitResult::kFits;
  if (cut < 0) {
    Group rest = group;
    rest.begin = begin;
    rest.end = stack_.size();
    rest.digest = digest;
    result = search(rest, {.offset = candidate.offset, .rank = candidate.rank});
  } else {
    std::int32_t first_section = group.first_section;
    std::size_t part_begin = begin;
    const std::size_t end = stack_.size();
    std::sort(stack_.begin() + begin, stack_.end(), [this](auto left, auto right) {
      return model_.items[left].first_section < model_.items[right].first_section;
    });
    for (std::int32_t section = group.first_section; section < group.end_section; ++section) {
      const bool is_cut = section + 1 == group.end_section ||
                          (crossing_[section] == 0 && section >= item.first_section && section + 1 < item.end_section);
      if (!is_cut) continue;
      std::size_t part_end = part_begin;
      while (part_end < end && model_.items[stack_[part_end]].first_section <= section) ++part_end;
      if (part_end > part_begin) {
        result = search_part(first_section, section + 1, part_begin, part_end, candidate.offset);
        if (result != FitResult::kFits) break;
      }
      part_begin = part_end;
      first_section = section + 1;
    }
  }
  stack_.resize(begin);
  return result;
}

}  // namespace stowage::solver
