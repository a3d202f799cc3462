// SPDX-License-Identifier: Apache-2.0
#include "solver/problem.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include <fmt/format.h>

#include "solver/text.h"

namespace stowage::solver {
namespace {

constexpr std::int32_t kNobody = -1;

std::string tensor_text(const Problem& problem, std::int32_t tensor) {
  return fmt::format("tensor {} {}", tensor, quote(problem.tensors[tensor].name));
}

std::optional<std::string> find_tensor_fault(const Problem& problem) {
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 62;
  std::int64_t sum_bytes = 0;
  for (std::int32_t id = 0; id < std::ssize(problem.tensors); ++id) {
    const Tensor& tensor = problem.tensors[id];
    if (tensor.size_bytes < 0) {
      return fmt::format("{} has a negative size of {} B", tensor_text(problem, id), tensor.size_bytes);
    }
    if (tensor.alignment_bytes <= 0 || !std::has_single_bit(static_cast<std::uint64_t>(tensor.alignment_bytes))) {
      return fmt::format("{} has an alignment of {} B; it must be a power of two", tensor_text(problem, id),
                         tensor.alignment_bytes);
    }
    // Aligned sizes are summed, since layouts use them.
    if (tensor.size_bytes >= kLimitBytes || tensor.alignment_bytes >= kLimitBytes) {
      return fmt::format("{} is larger than 2^62 B", tensor_text(problem, id));
    }
    const std::int64_t units = (tensor.size_bytes + tensor.alignment_bytes - 1) / tensor.alignment_bytes;
    if (units * tensor.alignment_bytes >= kLimitBytes - sum_bytes) {
      return fmt::format("the sizes up to {} sum to 2^62 B or more", tensor_text(problem, id));
    }
    sum_bytes += units * tensor.alignment_bytes;
  }
  return std::nullopt;
}

/// Walks the ops in program order, remembering who allocated and who freed each tensor.
class OpChecker {
 public:
  explicit OpChecker(const Problem& problem)
      : problem_(problem), allocator_(problem.tensors.size(), kNobody), freed_by_(problem.tensors.size(), kNobody) {}

  std::optional<std::string> find_fault(std::int32_t op_id) {
    const Op& op = problem_.ops[op_id];
    const auto fault = [&](const std::string& text) {
      return fmt::format("op {} {}: {}", op_id, quote(op.name), text);
    };
    for (const std::int32_t earlier : op.after) {
      if (earlier < 0 || earlier >= op_id) {
        return fault(fmt::format("'after' names op {}, which is not an earlier op", earlier));
      }
    }
    for (const Event& event : op.events) {
      const auto text = event_fault(op_id, event);
      if (text) return fault(*text);
    }
    for (const auto& [field, tensors] : {std::pair{"reads", &op.reads}, std::pair{"writes", &op.writes}}) {
      for (const std::int32_t tensor : *tensors) {
        const auto text = use_fault(op_id, tensor);
        if (text) return fault(fmt::format("'{}' names {}", field, *text));
      }
    }
    for (const Reuse& reuse : op.reuses) {
      const auto text = reuse_fault(op_id, reuse);
      if (text) return fault(fmt::format("'reuses' names {}", *text));
    }
    return std::nullopt;
  }

  std::optional<std::string> find_unallocated() const {
    for (std::int32_t id = 0; id < std::ssize(problem_.tensors); ++id) {
      if (!problem_.tensors[id].persistent && allocator_[id] == kNobody) {
        return fmt::format("{} is not persistent and no op allocates it", tensor_text(problem_, id));
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<std::string> range_fault(std::int32_t tensor) const {
    if (tensor >= 0 && tensor < std::ssize(problem_.tensors)) return std::nullopt;
    return fmt::format("tensor {}, but there are only {} tensors", tensor, problem_.tensors.size());
  }

  std::optional<std::string> event_fault(std::int32_t op, const Event& event) {
    const std::int32_t tensor = event.tensor;
    const bool allocates = event.kind == Event::Kind::kAllocate;
    const char* verb = allocates ? "allocates" : "frees";
    if (const auto text = range_fault(tensor)) return fmt::format("{} {}", verb, *text);
    const auto fault = [&](std::string_view reason) {
      return fmt::format("{} {}, {}", verb, tensor_text(problem_, tensor), reason);
    };
    if (problem_.tensors[tensor].persistent) return fault("which is persistent");
    if (allocates) {
      if (allocator_[tensor] != kNobody) return fault(fmt::format("which op {} allocates too", allocator_[tensor]));
      allocator_[tensor] = op;
      return std::nullopt;
    }
    if (problem_.tensors[tensor].output) return fault("which is an output");
    if (freed_by_[tensor] != kNobody) return fault("which is free already");
    if (allocator_[tensor] != op) return fault("which it has not allocated");
    freed_by_[tensor] = op;
    return std::nullopt;
  }

  std::optional<std::string> use_fault(std::int32_t op, std::int32_t tensor) const {
    if (const auto text = range_fault(tensor)) return text;
    if (problem_.tensors[tensor].persistent) return std::nullopt;
    if (allocator_[tensor] == kNobody) {
      return fmt::format("{}, which no op allocates before it", tensor_text(problem_, tensor));
    }
    if (freed_by_[tensor] != kNobody && freed_by_[tensor] != op) {
      return fmt::format("{}, which is workspace of op {}", tensor_text(problem_, tensor), freed_by_[tensor]);
    }
    return std::nullopt;
  }

  std::optional<std::string> reuse_fault(std::int32_t op_id, const Reuse& reuse) const {
    if (const auto text = range_fault(reuse.output)) return text;
    if (const auto text = range_fault(reuse.input)) return text;
    const Op& op = problem_.ops[op_id];
    const Tensor& output = problem_.tensors[reuse.output];
    const Tensor& input = problem_.tensors[reuse.input];
    const std::string output_text = tensor_text(problem_, reuse.output);
    const std::string input_text = tensor_text(problem_, reuse.input);
    if (allocator_[reuse.output] != op_id) return fmt::format("output {}, which it does not allocate", output_text);
    if (freed_by_[reuse.output] == op_id) return fmt::format("output {}, which it frees", output_text);
    if (reuse.output != op.reuses.front().output) return fmt::format("output {} besides another", output_text);
    if (std::find(op.reads.begin(), op.reads.end(), reuse.input) == op.reads.end()) {
      return fmt::format("input {}, which it does not read", input_text);
    }
    if (std::find(op.writes.begin(), op.writes.end(), reuse.input) != op.writes.end()) {
      return fmt::format("input {}, which it writes", input_text);
    }
    if (allocator_[reuse.input] == op_id) return fmt::format("input {}, which it allocates itself", input_text);
    if (input.persistent || input.output || input.external || output.external) {
      return fmt::format("input {} for {}, but both must be the step's own, and the input no output", input_text,
                         output_text);
    }
    if (input.size_bytes != output.size_bytes || input.alignment_bytes != output.alignment_bytes) {
      return fmt::format("input {} for {}, but their sizes or alignments differ", input_text, output_text);
    }
    return std::nullopt;
  }

  const Problem& problem_;
  std::vector<std::int32_t> allocator_;
  std::vector<std::int32_t> freed_by_;
};

}  // namespace

std::optional<std::string> find_fault(const Problem& problem) {
  if (auto fault = find_tensor_fault(problem)) return fault;
  OpChecker checker(problem);
  for (std::int32_t op = 0; op < std::ssize(problem.ops); ++op) {
    if (auto fault = checker.find_fault(op)) return fault;
  }
  return checker.find_unallocated();
}

void check(const Problem& problem) {
  if (const auto fault = find_fault(problem)) {
    throw std::invalid_argument(fmt::format("cannot plan {}: {}", quote(problem.name), *fault));
  }
}

std::vector<char> find_views(const Problem& problem) {
  std::vector<char> is_view(problem.ops.size(), 0);
  for (const Op& op : problem.ops) {
    for (const std::int32_t view : op.views) {
      const Op& made = problem.ops[view];
      is_view[view] = made.repeatable && made.events.empty() && made.writes.empty();
    }
  }
  return is_view;
}

void forbid_reuse(Problem& problem) {
  for (Op& op : problem.ops) op.reuses.clear();
}

}  // namespace stowage::solver
