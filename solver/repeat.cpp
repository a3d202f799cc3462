// SPDX-License-Identifier: Apache-2.0
#include "solver/repeat.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>
#include <utility>

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

/// The points of a copy, in the order in which those at one place come.
enum class Stage : std::uint8_t { kOffloaded, kOffload, kFetch, kArrive };

constexpr std::array<std::string_view, 4> kStageNames = {"offloaded", "offload", "fetch", "arrive"};

struct CopyPoint {
  std::int32_t before = 0;  ///< an execution
  Stage stage = Stage::kOffload;
  std::int32_t copy = 0;
};

std::vector<CopyPoint> sort_points(const std::vector<Copy>& copies) {
  std::vector<CopyPoint> points;
  for (std::int32_t id = 0; id < std::ssize(copies); ++id) {
    const Copy& copy = copies[id];
    points.push_back({copy.offloaded_after + 1, Stage::kOffloaded, id});
    points.push_back({copy.offload_after + 1, Stage::kOffload, id});
    points.push_back({copy.fetch_before, Stage::kFetch, id});
    points.push_back({copy.arrive_before, Stage::kArrive, id});
  }
  std::stable_sort(points.begin(), points.end(), [](const CopyPoint& left, const CopyPoint& right) {
    return std::tie(left.before, left.stage) < std::tie(right.before, right.stage);
  });
  return points;
}

class Repeater {
 public:
  explicit Repeater(const Problem& problem)
      : problem_(problem),
        first_(problem.ops.size(), kNotYet),
        latest_(problem.ops.size(), kNotYet),
        taken_(problem.ops.size()),
        held_(problem.ops.size()),
        is_view_(find_views(problem)),
        instance_(problem.tensors.size(), kNotYet),
        writes_(problem.tensors.size(), 0),
        leaving_(problem.tensors.size(), kNotYet) {
    result_.problem.name = problem.name;
    for (std::int32_t tensor = 0; tensor < std::ssize(problem.tensors); ++tensor) {
      if (problem.tensors[tensor].persistent) instance_[tensor] = add_tensor(tensor);
    }
    find_versions();
  }

  Repeated run(const std::vector<std::int32_t>& executions, const std::vector<Copy>& copies) {
    check_copies(executions, copies);
    result_.copies = copies;
    sources_.resize(copies.size());
    const std::vector<CopyPoint> points = sort_points(copies);
    auto point = points.begin();
    for (std::int32_t execution = 0; execution < std::ssize(executions); ++execution) {
      for (; point != points.end() && point->before == execution; ++point) pass(*point);
      const std::int32_t op = executions[execution];
      if (op < 0 || op >= std::ssize(problem_.ops)) {
        throw std::invalid_argument(fmt::format("cannot repeat ops: there is no op {}", op));
      }
      if (!is_view_[op]) execute(op);
    }
    for (std::int32_t op = 0; op < std::ssize(problem_.ops); ++op) {
      if (first_[op] == kNotYet && is_view_[op]) execute(op);
      if (first_[op] == kNotYet) refuse(op, "it is not there");
    }
    if (!copies.empty()) keep_order();
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::int32_t op, std::string_view why) const {
    throw std::invalid_argument(fmt::format("cannot repeat ops: op {} {}: {}", op, quote(problem_.ops[op].name), why));
  }

  void check_copies(const std::vector<std::int32_t>& executions, const std::vector<Copy>& copies) const {
    for (const Copy& copy : copies) {
      const bool is_tensor = copy.tensor >= 0 && copy.tensor < std::ssize(problem_.tensors);
      const bool is_in_order = 0 <= copy.offload_after && copy.offload_after < copy.offloaded_after &&
                               copy.offloaded_after < copy.fetch_before && copy.fetch_before <= copy.arrive_before &&
                               copy.arrive_before < std::ssize(executions);
      if (!is_tensor || !is_in_order || problem_.tensors[copy.tensor].persistent) {
        throw std::invalid_argument(fmt::format("cannot repeat ops: there is no such copy of tensor {}", copy.tensor));
      }
    }
  }

  [[noreturn]] void refuse_copy(std::int32_t tensor, std::string_view why) const {
    throw std::invalid_argument(
        fmt::format("cannot copy tensor {} {}: {}", tensor, quote(problem_.tensors[tensor].name), why));
  }

  void pass(const CopyPoint& point) {
    Copy& copy = result_.copies[point.copy];
    Version& source = sources_[point.copy];  // as a tensor of the result
    Op op;
    op.name = fmt::format("{}.{}", problem_.tensors[copy.tensor].name, kStageNames[static_cast<int>(point.stage)]);
    op.kind = fmt::format("stowage::{}", kStageNames[static_cast<int>(point.stage)]);
    switch (point.stage) {
      case Stage::kOffload:
        if (instance_[copy.tensor] == kNotYet) refuse_copy(copy.tensor, "it has not been made");
        source = {instance_[copy.tensor], writes_[copy.tensor]};
        leaving_[copy.tensor] = source.tensor;
        copy.offload_after = executed_ - 1;
        op.reads = {source.tensor};
        break;
      case Stage::kOffloaded:
        leaving_[copy.tensor] = kNotYet;
        copy.offloaded_after = executed_ - 1;
        op.reads = {source.tensor};
        break;
      case Stage::kFetch:
        source.tensor = add_tensor(copy.tensor);
        copy.fetch_before = executed_;
        op.events = {{Event::Kind::kAllocate, source.tensor}};
        break;
      case Stage::kArrive:
        instance_[copy.tensor] = source.tensor;
        writes_[copy.tensor] = source.writes;
        copy.arrive_before = executed_;
        op.reads = op.writes = {source.tensor};
        break;
    }
    result_.op_of.push_back(kCopyPoint);
    result_.problem.ops.push_back(std::move(op));
  }

  void keep_order() {
    std::vector<Op>& ops = result_.problem.ops;
    for (std::int32_t op = 1; op < std::ssize(ops); ++op) {
      if (!contains(ops[op].after, op - 1)) ops[op].after.push_back(op - 1);
    }
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
      if (instance_[tensor] == leaving_[tensor]) refuse_copy(tensor, fmt::format("op {} writes it meanwhile", op_id));
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
    ++executed_;
    result_.op_of.push_back(op_id);
    result_.problem.ops.push_back(std::move(execution));
  }

  const Problem& problem_;
  Repeated result_;
  std::vector<std::int32_t> first_;              ///< by op: its first execution
  std::vector<std::int32_t> latest_;             ///< by op
  std::vector<std::vector<Version>> taken_;      ///< by op: of what it reads or writes
  std::vector<std::vector<std::int32_t>> held_;  ///< by op: what its latest execution read, as tensors of the result
  const std::vector<char> is_view_;              ///< by op: runs whenever its views are needed
  std::vector<std::int32_t> instance_;           ///< by tensor: the latest that was made
  std::vector<std::int32_t> writes_;             ///< by tensor: of the latest
  std::vector<std::int32_t> leaving_;            ///< by tensor: what is being copied out, as a tensor of the result
  std::vector<Version> sources_;                 ///< by copy: what it is of, then what came back
  std::int32_t executed_ = 0;
};

}  // namespace

Repeated repeat(const Problem& problem, const std::vector<std::int32_t>& executions) {
  return Repeater(problem).run(executions, {});
}

Repeated repeat(const Problem& problem, const std::vector<std::int32_t>& executions, const std::vector<Copy>& copies) {
  return Repeater(problem).run(executions, copies);
}

}  // namespace stowage::solver
