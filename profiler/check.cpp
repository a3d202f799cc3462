// SPDX-License-Identifier: Apache-2.0
#include "profiler/check.h"

#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace stowage::profiler {
namespace {

/// Collects the first contradiction among rows of one kind.
class Checker {
 public:
  Checker(std::size_t op_count, std::size_t tensor_count, std::size_t allocation_count)
      : op_count_(op_count), tensor_count_(tensor_count), allocation_count_(allocation_count) {}

  void begin(std::string_view rows) {
    rows_ = rows;
    row_ = 0;
  }
  void next_row() { ++row_; }

  void op(std::int32_t op) { id("op", op, op_count_); }
  void tensor(std::int32_t tensor) { id("tensor", tensor, tensor_count_); }
  void allocation(std::int32_t allocation) { id("allocation", allocation, allocation_count_); }
  void require(bool kept, std::string_view otherwise) {
    if (!kept && !found_) found_ = fmt::format("{} {} {}", rows_, row_, otherwise);
  }

  std::optional<std::string> found() && { return std::move(found_); }

 private:
  void id(std::string_view what, std::int32_t id, std::size_t count) {
    if (id >= 0 && std::cmp_less(id, count)) return;
    require(false, fmt::format("names {} {} of {}", what, id, count));
  }

  std::size_t op_count_;
  std::size_t tensor_count_;
  std::size_t allocation_count_;
  std::string_view rows_;
  std::size_t row_ = 0;
  std::optional<std::string> found_;
};

/// What CUPTI saw, and that the run's allocations agree with it.
void check_device(const Run& run, Checker& check) {
  check.begin("kernel");
  for (const KernelRecord& kernel : run.kernels) {
    if (kernel.op != kNone) check.op(kernel.op);
    check.require(kernel.duration_ns >= 0, "has a negative duration");
    check.next_row();
  }
  check.begin("copy");
  for (const CopyRecord& copy : run.copies) {
    if (copy.op != kNone) check.op(copy.op);
    check.require(copy.size_bytes >= 0, "has a negative size");
    check.require(copy.duration_ns >= 0, "has a negative duration");
    check.next_row();
  }

  using Kind = DeviceMemoryRecord::Kind;
  std::vector<const DeviceMemoryRecord*> seen(run.allocations.size());
  std::int64_t mismatches = 0;
  check.begin("device memory change");
  for (const DeviceMemoryRecord& change : run.device_memory) {
    if (change.op != kNone) check.op(change.op);
    check.require(change.size_bytes >= 0, "has a negative size");
    if (change.allocation != kNone) check.allocation(change.allocation);
    if (change.kind == Kind::kAllocate && change.allocation >= 0 && std::cmp_less(change.allocation, seen.size())) {
      const auto allocation = static_cast<std::size_t>(change.allocation);
      check.require(seen[allocation] == nullptr, fmt::format("makes allocation {} again", allocation));
      seen[allocation] = &change;
      mismatches += change.size_bytes != run.allocations[allocation].requested_bytes;
    }
    check.next_row();
  }
  check.begin("allocation");
  for (std::size_t allocation = 0; allocation < seen.size(); ++allocation) {
    const AllocationRecord& record = run.allocations[allocation];
    check.require(record.source != AllocationSource::kCupti ||
                      (seen[allocation] != nullptr && seen[allocation]->size_bytes == record.requested_bytes),
                  "has a size of CUPTI's that CUPTI did not see");
    check.next_row();
  }
  check.begin("run");
  check.require(run.size_mismatches == mismatches,
                fmt::format("counts {} of {} unlike sizes", run.size_mismatches, mismatches));
}

}  // namespace

std::optional<std::string> find_contradiction(const Run& run) {
  Checker check(run.ops.size(), run.tensors.size(), run.allocations.size());
  check.begin("run");
  check.require(run.alignment_bytes > 0, "has no alignment");
  check.begin("op");
  for (const OpRecord& op : run.ops) {
    check.require(op.program_op >= kNone, "is of no op of the program");
    check.next_row();
  }
  check.begin("tensor");
  for (const TensorRecord& tensor : run.tensors) {
    check.require(tensor.size_bytes >= 0, "has a negative size");
    check.next_row();
  }
  check.begin("use");
  for (const UseRecord& use : run.uses) {
    check.op(use.op);
    check.tensor(use.tensor);
    check.require(use.kind == UseKind::kResult ? use.position >= 0 : use.position == kNone, "has a wrong position");
    check.next_row();
  }
  check.begin("dependency");
  for (const DependencyRecord& dependency : run.dependencies) {
    check.op(dependency.op);
    check.op(dependency.after);
    check.require(dependency.after < dependency.op, "does not name an earlier op");
    check.next_row();
  }
  check.begin("allocation");
  for (const AllocationRecord& allocation : run.allocations) {
    check.tensor(allocation.tensor);
    check.op(allocation.op);
    check.require(allocation.index >= 0, "has a negative index");
    check.require(allocation.requested_bytes >= 0, "has a negative size");
    check.require(allocation.rounded_bytes >= allocation.requested_bytes, "is rounded down");
    check.require(allocation.allocate_event >= 0, "has a negative event");
    check.require((allocation.free_op == kNone) == (allocation.free_event == kNone), "is freed by half");
    check.require(allocation.lane >= 0, "has a negative lane");
    if (allocation.free_op != kNone) check.op(allocation.free_op);
    if (allocation.free_event != kNone) {
      check.require(allocation.free_event > allocation.allocate_event, "is freed before it is made");
    }
    check.next_row();
  }
  check.begin("carried allocation");
  check.require(run.carried.empty() || run.kind == RunKind::kStep, "is of no step");
  for (const CarriedRecord& carried : run.carried) {
    check.allocation(carried.allocation);
    check.op(carried.free_op);
    check.require(carried.free_event >= 0, "has a negative event");
    if (carried.allocation >= 0 && std::cmp_less(carried.allocation, run.allocations.size())) {
      check.require(run.allocations[static_cast<std::size_t>(carried.allocation)].free_event == kNone,
                    "is freed in its own step, too");
    }
    check.next_row();
  }
  check.begin("reuse");
  for (const ReuseRecord& reuse : run.reuses) {
    check.op(reuse.op);
    check.tensor(reuse.output);
    check.tensor(reuse.input);
    check.require(reuse.output != reuse.input, "is of itself");
    check.require(reuse.position >= 0, "has a wrong position");
    check.next_row();
  }
  check_device(run, check);
  return std::move(check).found();
}

std::optional<std::string> find_contradiction(const PlanRecord& plan, std::size_t op_count, std::size_t tensor_count) {
  if (plan.order.size() != op_count) return fmt::format("the plan orders {} of {} ops", plan.order.size(), op_count);

  Checker check(op_count, tensor_count, 0);
  check.begin("step");
  std::vector<bool> ordered(op_count);
  for (const std::int32_t op : plan.order) {
    check.op(op);
    if (op >= 0 && std::cmp_less(op, op_count)) {
      check.require(!ordered[static_cast<std::size_t>(op)], fmt::format("runs op {} again", op));
      ordered[static_cast<std::size_t>(op)] = true;
    }
    check.next_row();
  }
  check.begin("slot");
  for (const SlotRecord& slot : plan.slots) {
    check.tensor(slot.tensor);
    for (const std::int64_t offset_bytes : {slot.offset_bytes, slot.other_offset_bytes.value_or(slot.offset_bytes)}) {
      const bool is_inside = offset_bytes >= 0 && slot.size_bytes >= 0 && slot.size_bytes <= plan.arena_bytes &&
                             offset_bytes <= plan.arena_bytes - slot.size_bytes;
      check.require(is_inside, fmt::format("is outside the arena of {} B", plan.arena_bytes));
      check.require(!is_inside || offset_bytes >= plan.cut_bytes || offset_bytes + slot.size_bytes <= plan.cut_bytes,
                    fmt::format("lies across the cut at {} B", plan.cut_bytes));
    }
    check.next_row();
  }
  check.begin("point");
  for (const PointRecord& point : plan.points) {
    check.op(point.op);
    check.tensor(point.tensor);
    check.require((point.of != kNone) == (point.kind == PointKind::kReuse), "takes a tensor's memory by half");
    if (point.of != kNone) check.tensor(point.of);
    check.next_row();
  }
  return std::move(check).found();
}

}  // namespace stowage::profiler
