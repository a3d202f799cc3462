// SPDX-License-Identifier: Apache-2.0
#include "solver/dependencies.h"

#include <algorithm>

namespace stowage::solver {
namespace {

/// Who touched a tensor last.
struct History {
  std::int32_t writer = -1;
  std::vector<std::int32_t> readers;  ///< since the last write
};

void sort_unique(std::vector<std::int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

Dependencies find_dependencies(const Problem& problem) {
  const auto op_count = static_cast<std::int32_t>(problem.ops.size());
  Dependencies found{.predecessors = std::vector<std::vector<std::int32_t>>(op_count),
                     .successors = std::vector<std::vector<std::int32_t>>(op_count)};
  std::vector<History> histories(problem.tensors.size());
  std::vector<std::int32_t> written;
  for (std::int32_t op_id = 0; op_id < op_count; ++op_id) {
    const Op& op = problem.ops[op_id];
    std::vector<std::int32_t>& before = found.predecessors[op_id];
    before = op.after;

    written = op.writes;
    for (const Event& event : op.events) written.push_back(event.tensor);
    sort_unique(written);
    for (const std::int32_t tensor : op.reads) {
      if (histories[tensor].writer >= 0) before.push_back(histories[tensor].writer);
    }
    for (const std::int32_t tensor : written) {
      History& history = histories[tensor];
      if (history.writer >= 0) before.push_back(history.writer);
      before.insert(before.end(), history.readers.begin(), history.readers.end());
    }
    sort_unique(before);
    for (const std::int32_t earlier : before) found.successors[earlier].push_back(op_id);

    for (const std::int32_t tensor : op.reads) histories[tensor].readers.push_back(op_id);
    for (const std::int32_t tensor : written) histories[tensor] = {.writer = op_id, .readers = {}};
  }
  return found;
}

void find_closure(const Dependencies& dependencies, std::int32_t first_op, ClosureBlock& block) {
  const auto op_count = static_cast<std::int32_t>(dependencies.predecessors.size());
  block.first_op = first_op;
  block.before.assign(op_count, 0);
  block.after.assign(op_count, 0);
  const auto bit = [first_op](std::int32_t op) {
    return op >= first_op && op < first_op + 64 ? std::uint64_t{1} << (op - first_op) : 0;
  };
  // Program order is topological, and nothing outside these ranges has a bit.
  for (std::int32_t op = std::min(op_count, first_op + 64) - 1; op >= 0; --op) {
    for (const std::int32_t next : dependencies.successors[op]) block.before[op] |= block.before[next] | bit(next);
  }
  for (std::int32_t op = first_op; op < op_count; ++op) {
    for (const std::int32_t previous : dependencies.predecessors[op]) {
      block.after[op] |= block.after[previous] | bit(previous);
    }
  }
}

}  // namespace stowage::solver
