// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solver/layout.h"

namespace stowage::solver {

/// A buffer as the exact search sees it. Sizes and offsets count in units of the model.
struct LayoutItem {
  std::int32_t buffer = 0;
  /// Sections during which it is live: `[first_section, end_section)`, never empty.
  std::int32_t first_section = 0;
  std::int32_t end_section = 0;
  std::int64_t size = 0;
  std::int64_t alignment = 1;
  /// -1 if it may lie anywhere.
  std::int64_t fixed_offset = -1;
  std::int64_t step_count = 0;

  bool operator==(const LayoutItem&) const = default;
};

/// Lists of indices in one block of memory.
struct IndexLists {
  std::vector<std::int32_t> begin;  ///< by list, and one more: where it starts in `values`
  std::vector<std::int32_t> values;

  std::span<const std::int32_t> operator[](std::int32_t list) const {
    return {values.data() + begin[list], values.data() + begin[list + 1]};
  }
};

/// Buffers that are connected in time, prepared for the exact search. A section is a run of steps whose live set no
/// other step's contains; the rest cannot decide whether a layout fits.
struct LayoutModel {
  std::vector<LayoutItem> items;
  std::int32_t section_count = 0;
  IndexLists live;         ///< by section: items, ascending
  IndexLists overlapping;  ///< by item: items that share a section with it, ascending
  /// Every offset worth trying is a multiple of it.
  std::int64_t unit_bytes = 1;
};

/// Splits the ids of buffers that are not empty into groups that share no step, earliest first.
std::vector<std::vector<std::int32_t>> find_components(const std::vector<Buffer>& buffers);

/// How many pairs of `ids` share a step: what the lists of a model take, halved.
std::int64_t count_overlaps(const std::vector<Buffer>& buffers, const std::vector<std::int32_t>& ids);

/// The model of the buffers `ids`, none of them empty.
LayoutModel make_layout_model(const std::vector<Buffer>& buffers, const std::vector<std::int32_t>& ids);

}  // namespace stowage::solver
