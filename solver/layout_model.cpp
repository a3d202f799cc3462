// SPDX-License-Identifier: Apache-2.0
#include "solver/layout_model.h"

#include <algorithm>
#include <numeric>

namespace stowage::solver {
namespace {

using Ids = std::vector<std::int32_t>;

/// When buffers begin and when they end, each ascending.
struct Ends {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> ends;
};

Ends sort_ends(const std::vector<Buffer>& buffers, const Ids& ids) {
  Ends sorted;
  for (const std::int32_t id : ids) {
    sorted.starts.push_back(buffers[id].lower);
    sorted.ends.push_back(buffers[id].upper);
  }
  std::sort(sorted.starts.begin(), sorted.starts.end());
  std::sort(sorted.ends.begin(), sorted.ends.end());
  return sorted;
}

/// A step out of each section, ascending.
std::vector<std::int64_t> find_sections(const std::vector<Buffer>& buffers, const Ids& ids) {
  const auto [starts, ends] = sort_ends(buffers, ids);
  std::vector<std::int64_t> steps;
  std::size_t end = 0;
  for (std::size_t start = 0; start < starts.size(); ++start) {
    // Live sets grow until the first end after a start.
    const bool grows_on = start + 1 < starts.size() && starts[start + 1] < ends[end];
    if (grows_on) continue;
    steps.push_back(starts[start]);
    while (start + 1 < starts.size() && end < ends.size() && ends[end] <= starts[start + 1]) ++end;
  }
  return steps;
}

std::int64_t find_unit(const std::vector<Buffer>& buffers, const Ids& ids) {
  std::int64_t unit_bytes = 0;
  for (const std::int32_t id : ids) {
    unit_bytes = std::gcd(unit_bytes, buffers[id].size_bytes);
    unit_bytes = std::gcd(unit_bytes, buffers[id].fixed_offset_bytes.value_or(0));
  }
  bool shrank = true;
  while (shrank) {
    shrank = false;
    for (const std::int32_t id : ids) {
      // An alignment that divides the unit asks for nothing.
      if (unit_bytes % buffers[id].alignment_bytes == 0) continue;
      const std::int64_t common_bytes = std::gcd(unit_bytes, buffers[id].alignment_bytes);
      shrank = shrank || common_bytes < unit_bytes;
      unit_bytes = common_bytes;
    }
  }
  return unit_bytes;
}

IndexLists gather(const std::vector<Ids>& lists) {
  IndexLists gathered;
  gathered.begin.push_back(0);
  for (const Ids& list : lists) {
    gathered.values.insert(gathered.values.end(), list.begin(), list.end());
    gathered.begin.push_back(static_cast<std::int32_t>(gathered.values.size()));
  }
  return gathered;
}

}  // namespace

std::vector<std::vector<std::int32_t>> find_components(const std::vector<Buffer>& buffers) {
  Ids ids;
  for (std::int32_t id = 0; id < std::ssize(buffers); ++id) {
    if (buffers[id].size_bytes > 0) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(),
                   [&](auto left, auto right) { return buffers[left].lower < buffers[right].lower; });
  std::vector<Ids> components;
  std::int64_t end_step = 0;
  for (const std::int32_t id : ids) {
    if (components.empty() || buffers[id].lower >= end_step) components.emplace_back();
    components.back().push_back(id);
    end_step = components.back().size() == 1 ? buffers[id].upper : std::max(end_step, buffers[id].upper);
  }
  return components;
}

std::int64_t count_overlaps(const std::vector<Buffer>& buffers, const std::vector<std::int32_t>& ids) {
  const auto [starts, ends] = sort_ends(buffers, ids);
  std::int64_t count = 0;
  std::size_t end = 0;
  for (std::size_t start = 0; start < starts.size(); ++start) {
    while (ends[end] <= starts[start]) ++end;
    count += static_cast<std::int64_t>(start - end);
  }
  return count;
}

LayoutModel make_layout_model(const std::vector<Buffer>& buffers, const std::vector<std::int32_t>& ids) {
  LayoutModel model;
  model.unit_bytes = find_unit(buffers, ids);
  const std::vector<std::int64_t> steps = find_sections(buffers, ids);
  model.section_count = static_cast<std::int32_t>(steps.size());
  std::vector<Ids> live(steps.size());
  for (const std::int32_t id : ids) {
    const Buffer& buffer = buffers[id];
    const auto section_at = [&](std::int64_t step) {
      return static_cast<std::int32_t>(std::lower_bound(steps.begin(), steps.end(), step) - steps.begin());
    };
    const bool is_aligned = model.unit_bytes % buffer.alignment_bytes == 0;
    model.items.push_back(
        {.buffer = id,
         .first_section = section_at(buffer.lower),
         .end_section = section_at(buffer.upper),
         .size = buffer.size_bytes / model.unit_bytes,
         .alignment = is_aligned ? 1 : buffer.alignment_bytes / model.unit_bytes,
         .fixed_offset = buffer.fixed_offset_bytes ? *buffer.fixed_offset_bytes / model.unit_bytes : -1,
         .step_count = buffer.upper - buffer.lower});
    const LayoutItem& item = model.items.back();
    for (std::int32_t section = item.first_section; section < item.end_section; ++section) {
      live[section].push_back(static_cast<std::int32_t>(model.items.size()) - 1);
    }
  }
  Ids by_start(ids.size());
  std::iota(by_start.begin(), by_start.end(), 0);
  std::stable_sort(by_start.begin(), by_start.end(), [&model](auto left, auto right) {
    return model.items[left].first_section < model.items[right].first_section;
  });
  std::vector<Ids> overlapping(ids.size());
  Ids running;
  for (const std::int32_t item : by_start) {
    std::erase_if(
        running, [&](std::int32_t other) { return model.items[other].end_section <= model.items[item].first_section; });
    for (const std::int32_t other : running) {
      overlapping[item].push_back(other);
      overlapping[other].push_back(item);
    }
    running.push_back(item);
  }
  for (Ids& list : overlapping) std::sort(list.begin(), list.end());
  model.live = gather(live);
  model.overlapping = gather(overlapping);
  return model;
}

}  // namespace stowage::solver
