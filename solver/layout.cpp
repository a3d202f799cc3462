// SPDX-License-Identifier: Apache-2.0
#include "solver/layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "solver/layout_model.h"
#include "solver/layout_race.h"
#include "solver/packing.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

/// Both with fixed offsets.
bool overlap_fixed(const Buffer& left, const Buffer& right) {
  return left.lower < right.upper && right.lower < left.upper &&
         *left.fixed_offset_bytes < *right.fixed_offset_bytes + right.size_bytes &&
         *right.fixed_offset_bytes < *left.fixed_offset_bytes + left.size_bytes;
}

void check_buffers(const std::vector<Buffer>& buffers) {
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 62;
  std::int64_t sum_bytes = 0;
  for (const Buffer& buffer : buffers) {
    const auto refuse = [&buffer](const std::string& reason) {
      throw std::invalid_argument(fmt::format("cannot lay out buffer {}: {}", quote(buffer.id), reason));
    };
    if (buffer.lower >= buffer.upper) {
      refuse(fmt::format("lower {} is not below upper {}; upper is exclusive", buffer.lower, buffer.upper));
    }
    if (buffer.size_bytes < 0) refuse(fmt::format("size {} is negative", buffer.size_bytes));
    if (buffer.alignment_bytes <= 0) refuse(fmt::format("alignment {} is not positive", buffer.alignment_bytes));
    // Worst case of a packing: each buffer above the last one, with padding in front.
    if (buffer.size_bytes >= kLimitBytes || buffer.alignment_bytes >= kLimitBytes ||
        buffer.size_bytes + (buffer.alignment_bytes - 1) >= kLimitBytes - sum_bytes) {
      refuse("the sizes up to it sum to 2^62 B or more");
    }
    sum_bytes += buffer.size_bytes + (buffer.alignment_bytes - 1);
    if (!buffer.fixed_offset_bytes) continue;
    if (*buffer.fixed_offset_bytes < 0) refuse(fmt::format("offset {} is negative", *buffer.fixed_offset_bytes));
    if (*buffer.fixed_offset_bytes % buffer.alignment_bytes != 0) {
      refuse(fmt::format("offset {} is not a multiple of its alignment {}", *buffer.fixed_offset_bytes,
                         buffer.alignment_bytes));
    }
    if (*buffer.fixed_offset_bytes >= kLimitBytes)
      refuse(fmt::format("offset {} is above 2^62 B", *buffer.fixed_offset_bytes));
  }
}

std::int64_t find_bound(const std::vector<Buffer>& buffers, const std::vector<std::int32_t>& ids) {
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;  // step, bytes; ends sort before starts
  std::int64_t bound_bytes = 0;
  for (const std::int32_t id : ids) {
    const Buffer& buffer = buffers[id];
    changes.emplace_back(buffer.lower, buffer.size_bytes);
    changes.emplace_back(buffer.upper, -buffer.size_bytes);
    if (buffer.fixed_offset_bytes && buffer.size_bytes > 0) {
      bound_bytes = std::max(bound_bytes, *buffer.fixed_offset_bytes + buffer.size_bytes);
    }
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t live_bytes = 0;
  for (const auto& [step, bytes] : changes) {
    live_bytes += bytes;
    bound_bytes = std::max(bound_bytes, live_bytes);
  }
  return bound_bytes;
}

/// Buffers that share no step with the rest, and the lowest layout of them so far.
struct Component {
  std::vector<std::int32_t> ids;
  std::int64_t bound_bytes = 0;
  std::int64_t height_bytes = 0;
  std::vector<std::int32_t> sequence;  ///< ids that may move, in the order in which they were packed last
  bool tightest = false;
  std::optional<LayoutModel> model;
  std::optional<LayoutRace> race;
  std::uint32_t run_count = 0;  ///< of the race
};

class LayoutSearch {
 public:
  LayoutSearch(const std::vector<Buffer>& buffers, const LayoutLimits& limits)
      : buffers_(buffers), limits_(limits), packing_(buffers), offset_bytes_(buffers.size(), 0) {
    for (std::vector<std::int32_t>& ids : find_components(buffers)) {
      Component& component = components_.emplace_back();
      component.ids = std::move(ids);
      component.bound_bytes = find_bound(buffers, component.ids);
      component.height_bytes = kUnknown;
      bound_bytes_ = std::max(bound_bytes_, component.bound_bytes);
    }
    for (std::int32_t id = 0; id < std::ssize(buffers); ++id) {
      if (buffers[id].fixed_offset_bytes) offset_bytes_[id] = *buffers[id].fixed_offset_bytes;
    }
    for (const Component& component : components_) place_fixed(component);
  }

  Layout find() {
    if (is_refuted()) {
      return {.offset_bytes = {}, .height_bytes = 0, .bound_bytes = bound_bytes_, .status = Status::kInfeasible};
    }
    for (Component& component : components_) run_portfolio(component);
    search();
    Layout layout{.offset_bytes = {}, .height_bytes = height_bytes(), .bound_bytes = bound_bytes_};
    if (limits_.capacity_bytes && layout.height_bytes > *limits_.capacity_bytes) {
      layout.status = is_refuted() ? Status::kInfeasible : Status::kTimedOut;
    } else {
      layout.offset_bytes = std::move(offset_bytes_);
      layout.status = layout.height_bytes == bound_bytes_ ? Status::kOptimal : Status::kFeasible;
    }
    return layout;
  }

 private:
  using Ids = std::vector<std::int32_t>;

  /// An exact search with more pairs that share a step is too slow to be of use; one with more buffers, each of which
  /// may be a level of recursion, could overflow a stack of 2 MiB.
  static constexpr std::int64_t kMaxOverlaps = 2'000'000;
  static constexpr std::int64_t kMaxItems = 2'500;
  /// With more buffers each packing takes a second or so: only the quick ones are tried, once each.
  static constexpr std::int64_t kMaxRepacked = 20'000;
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

  std::int64_t height_bytes() const {
    std::int64_t height_bytes = 0;
    for (const Component& component : components_) height_bytes = std::max(height_bytes, component.height_bytes);
    return height_bytes;
  }

  /// What a component need not go below.
  std::int64_t target_bytes() const { return std::max(limits_.capacity_bytes.value_or(0), bound_bytes_); }

  bool is_open(const Component& component) const { return component.height_bytes > target_bytes(); }

  static bool is_large(const Component& component) { return std::ssize(component.ids) > kMaxRepacked; }

  bool is_out() const { return nodes_ >= limits_.node_limit || std::chrono::steady_clock::now() >= limits_.deadline; }

  bool is_refuted() const { return limits_.capacity_bytes && bound_bytes_ > *limits_.capacity_bytes; }

  void raise_bound(Component& component, std::int64_t bound_bytes) {
    component.bound_bytes = std::max(component.bound_bytes, bound_bytes);
    bound_bytes_ = std::max(bound_bytes_, component.bound_bytes);
  }

  void place_fixed(const Component& component) {
    for (const std::int32_t id : component.ids) {
      if (!buffers_[id].fixed_offset_bytes || packing_.place_fixed(id)) continue;
      for (const std::int32_t other : component.ids) {
        if (other == id || !buffers_[other].fixed_offset_bytes || !overlap_fixed(buffers_[id], buffers_[other]))
          continue;
        throw std::invalid_argument(fmt::format("cannot lay out buffer {}: its fixed offset overlaps that of {}",
                                                quote(buffers_[id].id), quote(buffers_[other].id)));
      }
    }
  }

  /// Packs the component in its sequence. Returns whether it was not cut short, which a first packing never is.
  bool pack(Component& component) {
    packing_.clear();
    place_fixed(component);
    for (const std::int32_t id : component.sequence) {
      if (component.height_bytes != kUnknown && nodes_ % 64 == 0 && is_out()) return false;
      packing_.place(id, component.tightest);
      ++nodes_;
    }
    std::int64_t height_bytes = 0;
    for (const std::int32_t id : component.ids) height_bytes = std::max(height_bytes, packing_.end_bytes(id));
    if (height_bytes >= component.height_bytes) return true;
    component.height_bytes = height_bytes;
    for (const std::int32_t id : component.ids) offset_bytes_[id] = packing_.offset_bytes()[id];
    return true;
  }

  void run_portfolio(Component& component) {
    Ids movable;
    for (const std::int32_t id : component.ids) {
      if (!buffers_[id].fixed_offset_bytes) movable.push_back(id);
    }
    std::sort(movable.begin(), movable.end());
    const auto length = [this](std::int32_t id) { return buffers_[id].upper - buffers_[id].lower; };
    const auto area = [&](std::int32_t id) {
      return static_cast<double>(buffers_[id].size_bytes) * static_cast<double>(length(id));
    };
    using Less = std::function<bool(std::int32_t, std::int32_t)>;
    const std::vector<Less> keys = {
        [&](auto left, auto right) { return buffers_[left].size_bytes > buffers_[right].size_bytes; },
        [&](auto left, auto right) { return area(left) > area(right); },
        [&](auto left, auto right) { return length(left) > length(right); },
        [&](auto left, auto right) { return buffers_[left].lower < buffers_[right].lower; },
        [&](auto left, auto right) { return buffers_[left].upper > buffers_[right].upper; },
    };
    Ids best_sequence;
    bool best_tightest = false;
    for (const Less& key : keys) {
      Ids ids = movable;
      std::stable_sort(ids.begin(), ids.end(), key);
      for (const bool tightest : {false, true}) {
        if (tightest && is_large(component)) break;
        if (component.height_bytes != kUnknown && (component.height_bytes <= target_bytes() || is_out())) break;
        const std::int64_t before_bytes = component.height_bytes;
        component.sequence = ids;
        component.tightest = tightest;
        pack(component);
        if (component.height_bytes == before_bytes) continue;
        best_sequence = ids;
        best_tightest = tightest;
      }
    }
    component.sequence = std::move(best_sequence);
    component.tightest = best_tightest;
  }

  void search() {
    for (std::int64_t effort = 1; !is_out() && !is_refuted(); effort *= 2) {
      bool any_open = false;
      for (Component& component : components_) {
        if (!is_open(component) || is_large(component)) continue;
        any_open = true;
        repack(component, 8 * effort);
        search_exactly(component, effort);
        if (!is_open(component)) component.race.reset();
      }
      if (!any_open) return;
    }
  }

  /// Again and again, whatever makes a packing as high as the best one moves far to the front of the sequence.
  void repack(Component& component, std::int64_t times) {
    Ids& ids = component.sequence;
    while (times-- > 0 && component.height_bytes > target_bytes() && pack(component)) {
      for (std::int32_t position = 0; position < std::ssize(ids); ++position) {
        if (packing_.end_bytes(ids[position]) < component.height_bytes) continue;
        std::rotate(ids.begin() + position / 8, ids.begin() + position, ids.begin() + position + 1);
      }
    }
  }

  /// Tries the target, then heights half way between those that were too hard and the best.
  void search_exactly(Component& component, std::int64_t effort) {
    if (std::ssize(component.ids) > kMaxItems || count_overlaps(buffers_, component.ids) > kMaxOverlaps) return;
    if (!component.model) {
      component.model = make_layout_model(buffers_, component.ids);
      component.race.emplace(*component.model, limits_.thread_count);
    }
    const std::int64_t unit_bytes = component.model->unit_bytes;
    const std::int64_t nodes_each = effort * 2 * std::ssize(component.ids);
    std::int64_t height = target_bytes() / unit_bytes;
    while (!is_out()) {
      const std::int64_t share = std::min(nodes_each, (limits_.node_limit - nodes_) / LayoutRace::search_count() + 1);
      const FitResult result = component.race->run(height, share, ++component.run_count, limits_.deadline);
      nodes_ += component.race->node_count();
      if (result == FitResult::kImpossible) raise_bound(component, (height + 1) * unit_bytes);
      if (result == FitResult::kFits) take(component);
      if (limits_.capacity_bytes) return;
      const std::int64_t best = component.height_bytes / unit_bytes;
      if (result == FitResult::kFits) height = target_bytes() / unit_bytes;
      if (best - height <= std::max<std::int64_t>(1, best / (64 * effort))) return;
      height += (best - height) / 2;
    }
  }

  void take(Component& component) {
    component.height_bytes = 0;
    for (std::int32_t index = 0; index < std::ssize(component.model->items); ++index) {
      const std::int32_t id = component.model->items[index].buffer;
      offset_bytes_[id] = component.race->offsets()[index] * component.model->unit_bytes;
      component.height_bytes = std::max(component.height_bytes, offset_bytes_[id] + buffers_[id].size_bytes);
    }
  }

  const std::vector<Buffer>& buffers_;
  const LayoutLimits limits_;
  Packing packing_;
  std::vector<Component> components_;
  std::vector<std::int64_t> offset_bytes_;  ///< of the lowest layout of each component
  std::int64_t bound_bytes_ = 0;
  std::int64_t nodes_ = 0;
};

}  // namespace

std::int64_t find_layout_bound(const std::vector<Buffer>& buffers) {
  std::vector<std::int32_t> ids(buffers.size());
  std::iota(ids.begin(), ids.end(), 0);
  return find_bound(buffers, ids);
}

Layout lay_out(const std::vector<Buffer>& buffers, const LayoutLimits& limits) {
  check_buffers(buffers);
  return LayoutSearch(buffers, limits).find();
}

}  // namespace stowage::solver
