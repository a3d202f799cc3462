// SPDX-License-Identifier: Apache-2.0
#include "solver/repeat.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "solver/text.h"

namespace stowage::solver {
namespace {

constexpr std::int32_t kNotYet = -1;

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

/// Which bytes of a tensor an op takes: how many ops have written it before, in program order; its allocation counts.
struct Version {
  std::int32_t tensor = 0;
  std::int32_t writes = 0;
};

class Repeater {
 public:
  explicit Repeater(const Problem& problem)
      : problem_(problem),
        first_(problem.ops.size(), kNotYet),
        latest_(problem.ops.size(), kNotYet),
        taken_(problem.ops.size()),
        held_(problem.ops.size()),
        is_view_(problem.ops.size(), false),
        instance_(problem.tensors.size(), kNotYet),
        writes_(problem.tensors.size(), 0) {
    result_.problem.name = problem.name;
    for (std::int32_t tensor = 0; tensor < std::ssize(problem.tensors); ++tensor) {
      if (problem.tensors[tensor].persistent) instance_[tensor] = add_tensor(tensor);
    }
    for (const Op& op : problem.ops) {
      for (const std::int32_t view : op.views) {
        const Op& made = problem.ops[view];
        is_view_[view] = made.repeatable && made.events.empty() && made.writes.empty();
      }
    }
    find_versions();
  }

  Repeated run(const std::vector<std::int32_t>& executions) {
    for (const std::int32_t op : executions) {
      if (op < 0 || op >= std::ssize(problem_.ops)) {
        throw std::invalid_argument(fmt::format("cannot repeat ops: there is no op {}", op));
      }
      if (!is_view_[op]) execute(op);
    }
    for (std::int32_t op = 0; op < std::ssize(problem_.ops); ++op) {
      if (first_[op] == kNotYet && is_view_[op]) execute(op);
      if (first_[op] == kNotYet) refuse(op, "it is not there");
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::int32_t op, std::string_view why) const {
    throw std::invalid_argument(fmt::format("cannot repeat ops: op {} {}: {}", op, quote(problem_.ops[op].name), why));
  }

  std::int32_t add_tensor(std::int32_t tensor) {
    result_.problem.tensors.push_back(problem_.tensors[tensor]);
    result_.tensor_of.push_back(tensor);
    return static_cast<std::int32_t>(result_.tensor_of.size()) - 1;
  }

  void find_versions() {
    std::vector<std::int32_t> writes(problem_.tensors.size(), 0);
    for (std::size_t op_id = 0; op_id < problem_.ops.size(); ++op_id) {
      const Op& op = problem_.ops[op_id];
      std::vector<std::int32_t> written = op.writes;
      for (const Event& event : op.events) {
        if (event.kind == Event::Kind::kAllocate) {
          std::erase(written, event.tensor);
          writes[event.tensor] = 1;
        }
      }
      for (const std::int32_t tensor : op.reads) taken_[op_id].push_back({tensor, writes[tensor]});
      for (const std::int32_t tensor : written) taken_[op_id].push_back({tensor, writes[tensor]});
      for (const std::int32_t tensor : written) ++writes[tensor];
    }
  }

  /// Views of what has been made again since are made again.
  void refresh_views(std::int32_t op) {
    for (const std::int32_t view : problem_.ops[op].views) {
      if (!is_view_[view]) continue;
      const std::vector<std::int32_t>& reads = problem_.ops[view].reads;
      bool is_stale = latest_[view] == kNotYet;
      for (std::size_t read = 0; read < reads.size() && !is_stale; ++read) {
        is_stale = held_[view][read] != instance_[reads[read]];
      }
      if (is_stale) execute(view);
    }
  }

  void execute(std::int32_t op_id) {
    const Op& op = problem_.ops[op_id];
    const bool again = first_[op_id] != kNotYet;
    if (again && !op.repeatable) refuse(op_id, "it runs again but is not repeatable");
    if (!again) {
      for (const std::int32_t earlier : op.after) {
        if (first_[earlier] != kNotYet) continue;
        if (!is_view_[earlier]) refuse(op_id, fmt::format("op {} has to run before it", earlier));
        execute(earlier);
      }
    }
    refresh_views(op_id);

    Op execution;
    execution.name = again ? op.name + ".again" : op.name;
    execution.kind = op.kind;
    execution.duration_ns = op.duration_ns;
    execution.repeatable = op.repeatable;
    const auto is_left_out = [&](std::int32_t tensor) {
      return again && problem_.tensors[tensor].persistent && contains(op.writes, tensor);
    };
    for (const Version& version : taken_[op_id]) {
      if (is_left_out(version.tensor)) continue;
      const bool is_there = instance_[version.tensor] != kNotYet;
      if (!is_there || (!is_view_[op_id] && writes_[version.tensor] != version.writes)) {
        refuse(op_id, fmt::format("tensor {} {} does not hold what it takes", version.tensor,
                                  quote(problem_.tensors[version.tensor].name)));
      }
    }
    held_[op_id].clear();
    for (const std::int32_t tensor : op.reads) {
      held_[op_id].push_back(instance_[tensor]);
      if (!is_left_out(tensor)) execution.reads.push_back(instance_[tensor]);
    }
    for (const Reuse& reuse : op.reuses) execution.reuses.push_back({kNotYet, instance_[reuse.input]});
    for (const Event& event : op.events) {
      if (event.kind == Event::Kind::kAllocate) {
        if (again && problem_.tensors[event.tensor].output)
          refuse(op_id, "it runs again but makes an output of the step");
        instance_[event.tensor] = add_tensor(event.tensor);
        writes_[event.tensor] = 1;
      }
      execution.events.push_back({event.kind, instance_[event.tensor]});
    }
    for (std::size_t reuse = 0; reuse < op.reuses.size(); ++reuse) {
      execution.reuses[reuse].output = instance_[op.reuses[reuse].output];
    }
    for (const std::int32_t tensor : op.writes) {
      if (is_left_out(tensor)) continue;
      execution.writes.push_back(instance_[tensor]);
      const bool allocates = std::any_of(op.events.begin(), op.events.end(), [&](const Event& event) {
        return event.tensor == tensor && event.kind == Event::Kind::kAllocate;
      });
      if (!allocates) ++writes_[tensor];
    }
    for (const std::int32_t earlier : op.after) {
      const bool is_view = contains(op.views, earlier);
      if (is_view) execution.views.push_back(latest_[earlier]);
      if (is_view || !again) execution.after.push_back(is_view ? latest_[earlier] : first_[earlier]);
    }
    latest_[op_id] = static_cast<std::int32_t>(result_.op_of.size());
    if (!again) first_[op_id] = latest_[op_id];
    result_.op_of.push_back(op_id);
    result_.problem.ops.push_back(std::move(execution));
  }

  const Problem& problem_;
  Repeated result_;
  std::vector<std::int32_t> first_;              ///< by op: its first execution
  std::vector<std::int32_t> latest_;             ///< by op
  std::vector<std::vector<Version>> taken_;      ///< by op: of what it reads or writes
  std::vector<std::vector<std::int32_t>> held_;  ///< by op: what its latest execution read, as tensors of the result
  std::vector<bool> is_view_;                    ///< by op: runs whenever its views are needed
  std::vector<std::int32_t> instance_;           ///< by tensor: the latest that was made
  std::vector<std::int32_t> writes_;             ///< by tensor: of the latest
};

}  // namespace

Repeated repeat(const Problem& problem, const std::vector<std::int32_t>& executions) {
  return Repeater(problem).run(executions);
}

}  // namespace stowage::solver
