// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stowage::profiler {

/// Marks "does not apply": a tensor no op allocated, an event that never came.
inline constexpr std::int32_t kNone = -1;

/// One graph node as it ran. Its id is its index in `Run::ops`: program order.
struct OpRecord {
  std::string name;           ///< debug name of its first output, or its kind and index
  std::string kind;           ///< qualified name, such as "aten::relu_"
  std::string scope;          ///< module scope, may be empty
  std::string source;         ///< "file.py:12", may be empty
  std::int64_t start_ns = 0;  ///< since the run began, on the run's clock
  /// Of a run that is planned from: the least of several; where there is a budget on the CPU, of such as followed a
  /// plan.
  std::int64_t duration_ns = 0;
  bool repeatable = false;  ///< run again on the same inputs, it makes the same bits and has no other effect
  /// Of a graph in which ops run again to stay within a budget: the op of the graph as it was written of which this is
  /// an execution; ops that run again are there more than once.
  std::int32_t program_op = kNone;

  bool operator==(const OpRecord&) const = default;
};

/// What a tensor is to the step.
enum class TensorKind : std::uint8_t {
  kInput,         ///< came in from outside: parameter, buffer, optimizer state, batch
  kConstant,      ///< held by the graph
  kIntermediate,  ///< allocated and freed by the step, has a graph value
  kWorkspace,     ///< allocated and freed within one op, has no graph value
  kOutput,        ///< allocated by the step, outlives it
};

/// One storage. Its id is its index in `Run::tensors`.
struct TensorRecord {
  std::string name;  ///< debug name of the first graph value that holds it
  TensorKind kind = TensorKind::kIntermediate;
  std::int64_t size_bytes = 0;  ///< as requested
  std::string dtype;            ///< of the first value, such as "Float"; may be empty
  std::string shape;            ///< of the first value, such as "[8, 64, 56, 56]"; may be empty

  bool operator==(const TensorRecord&) const = default;
};

enum class UseKind : std::uint8_t { kRead, kWrite, kResult };

/// An op reads, writes or returns a tensor. For kResult, `position` is which output of the op holds it; several
/// outputs, of several ops, may hold one tensor (views). For kRead and kWrite it is `kNone`.
struct UseRecord {
  std::int32_t op = 0;
  std::int32_t tensor = 0;
  UseKind kind = UseKind::kRead;
  std::int32_t position = kNone;

  bool operator==(const UseRecord&) const = default;
};

/// Why an op must follow an earlier one although they share no bytes.
enum class DependencyReason : std::uint8_t {
  kValue,    ///< it takes a value the earlier op made: a view, a size, a list; or one that shares memory in another run
  kRandom,   ///< both draw from a random generator
  kEffect,   ///< both have side effects, or one's is visible to the other
  kBarrier,  ///< one of them is not understood
};

struct DependencyRecord {
  std::int32_t op = 0;
  std::int32_t after = 0;  ///< the earlier op
  DependencyReason reason = DependencyReason::kValue;

  bool operator==(const DependencyRecord&) const = default;
};

/// A tensor that its op may write over an input that dies there: element by element, in the same layout.
struct ReuseRecord {
  std::int32_t op = 0;
  std::int32_t output = 0;    ///< the tensor that the op allocates
  std::int32_t input = 0;     ///< the tensor whose memory it may take
  std::int32_t position = 0;  ///< which input of the op holds it
  std::int64_t layout = 0;  ///< digest of the dtypes, sizes and strides of the op's inputs, which must be the same then

  bool operator==(const ReuseRecord&) const = default;
};

enum class AllocationSource : std::uint8_t { kAllocator, kCupti };

/// One allocation: the `index`-th (from 0, zero-byte requests not counted) while `op` ran.
/// Events number the run's allocations and frees from 0, together, in the order in which they happened.
struct AllocationRecord {
  std::int32_t tensor = 0;
  std::int32_t op = 0;
  std::int32_t index = 0;
  std::int64_t requested_bytes = 0;
  std::int64_t rounded_bytes = 0;  ///< what the allocator took for it
  std::int64_t stream = 0;         ///< 0 on the CPU
  std::int32_t allocate_event = 0;
  std::int32_t free_op = kNone;  ///< op during which it was freed; kNone if it outlived the run
  std::int32_t free_event = kNone;
  AllocationSource source = AllocationSource::kAllocator;
  std::int32_t lane = 0;  ///< the thread: 0 began the run, the others are numbered as they came

  bool operator==(const AllocationRecord&) const = default;
};

/// An allocation of a step that the next step frees. A step that repeats begins with what the one before left to it,
/// and frees that at the same op and event. No free is in the allocation's own record.
struct CarriedRecord {
  std::int32_t allocation = 0;
  std::int32_t free_op = 0;
  std::int32_t free_event = 0;

  bool operator==(const CarriedRecord&) const = default;
};

/// A kernel on the device. Times are on the run's clock, since the run began.
struct KernelRecord {
  std::int32_t op = kNone;  ///< that launched it; kNone: no op of the run
  std::string name;         ///< demangled
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t stream = 0;

  bool operator==(const KernelRecord&) const = default;
};

enum class CopyKind : std::uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice, kPeerToPeer, kOther, kSet };

/// A copy, or a fill (kSet), on the device.
struct CopyRecord {
  std::int32_t op = kNone;
  CopyKind kind = CopyKind::kOther;
  std::int64_t size_bytes = 0;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t stream = 0;

  bool operator==(const CopyRecord&) const = default;
};

/// The driver allocated or freed device memory. In the order in which it happened.
struct DeviceMemoryRecord {
  enum class Kind : std::uint8_t { kAllocate, kFree };

  std::int32_t op = kNone;  ///< during which it happened
  Kind kind = Kind::kAllocate;
  std::uint64_t address = 0;
  std::int64_t size_bytes = 0;
  std::int64_t time_ns = 0;
  std::int32_t allocation = kNone;  ///< that of `Run::allocations` which this is; kNone: not one of ours

  bool operator==(const DeviceMemoryRecord&) const = default;
};

/// What a plan depends on; together the key under which plans are remembered.
struct RunKey {
  std::string graph_hash;  ///< of the canonical printed graph; of a step: of the command that runs the loop
  std::string signature;   ///< of the inputs: shapes, strides, dtypes, devices, aliases, scalar values, grad mode; of a
                           ///< step: of the sizes that it allocates
  std::string device;      ///< "cpu", or the name of the GPU
  std::string torch_version;
  std::string rules;  ///< version of the rules by which the run was read: what may move, what may be reused

  bool operator==(const RunKey&) const = default;
};

enum class RunKind : std::uint8_t {
  kGraph,
  kStep,  ///< of a loop, between marks: ops as they came, and no uses, so nothing moves
};

/// One profiled execution of one graph, or one step of a loop.
struct Run {
  RunKey key;
  RunKind kind = RunKind::kGraph;
  std::string name;   ///< the graph's, for people
  std::string clock;  ///< "steady_clock" on the CPU, "cupti" on CUDA
  std::int64_t created_unix_ns = 0;
  std::int32_t execution = 0;  ///< which execution of the graph this was, from 1; the first is not the steady state
  std::int64_t dropped_records = 0;   ///< a lossy run is never planned from
  std::int64_t alignment_bytes = 64;  ///< of slots: PyTorch's of the device's memory
  bool complete = true;               ///< false if the run ended early
  std::string graph_text;             ///< the program, printed
  std::int64_t duration_ns = 0;
  std::int64_t peak_bytes = 0;  ///< largest live sum: inputs and constants included
  std::vector<OpRecord> ops;
  std::vector<TensorRecord> tensors;
  std::vector<UseRecord> uses;
  std::vector<DependencyRecord> dependencies;
  std::vector<AllocationRecord> allocations;
  std::vector<CarriedRecord> carried;  ///< of a step
  std::vector<ReuseRecord> reuses;     ///< an op's are together, best first

  // What CUPTI saw; empty on the CPU.
  std::vector<KernelRecord> kernels;
  std::vector<CopyRecord> copies;
  std::vector<DeviceMemoryRecord> device_memory;
  std::int64_t size_mismatches = 0;  ///< allocations of which CUPTI and the allocator report unlike sizes

  bool operator==(const Run&) const = default;
};

/// A slot in the arena, for the `index`-th allocation of an op.
struct SlotRecord {
  std::int32_t tensor = 0;
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;                                    ///< rounded up to the alignment
  std::optional<std::int64_t> other_offset_bytes = std::nullopt;  ///< in every second step, where steps take turns

  bool operator==(const SlotRecord&) const = default;
};

enum class PointKind : std::uint8_t { kPlace, kReuse, kFree };

/// What the rewritten graph says about a tensor at an op: place it while the op runs, place it there over the tensor
/// `of`, which ends, or free it after the op.
struct PointRecord {
  PointKind kind = PointKind::kPlace;
  std::int32_t op = 0;
  std::int32_t tensor = 0;
  std::int32_t of = kNone;  ///< for kReuse alone

  bool operator==(const PointRecord&) const = default;
};

/// What a plan was to stay within, and what that takes. Times are of the ops' durations, together.
struct BudgetRecord {
  std::int64_t limit_bytes = 0;  ///< of the peak; 0: none
  std::int64_t limit_ns = 0;     ///< 0: none
  std::int64_t unplanned_peak_bytes = 0;
  std::int64_t unplanned_ns = 0;
  std::int64_t predicted_ns = 0;
  std::int64_t bound_ns = 0;          ///< no schedule with this peak takes less
  std::int64_t bound_peak_bytes = 0;  ///< no schedule needs less, whatever runs again
  std::string status;                 ///< "optimal", "feasible", "infeasible" or "timed_out", of the time

  bool operator==(const BudgetRecord&) const = default;
};

/// A plan for a run, as remembered.
struct PlanRecord {
  std::vector<std::int32_t> order;  ///< op ids in execution order
  std::vector<SlotRecord> slots;
  std::vector<PointRecord> points;
  std::int64_t peak_bytes = 0;
  std::int64_t program_peak_bytes = 0;
  std::int64_t bound_bytes = 0;
  std::string order_status;
  std::int64_t arena_bytes = 0;
  std::int64_t cut_bytes = 0;  ///< no slot lies across it, so that the arena may be two blocks; 0: it must be one
  std::int64_t arena_bound_bytes = 0;
  std::string layout_status;
  std::int64_t planning_ns = 0;  ///< from the run to a validated plan, ready to run
  std::string graph_text;        ///< the planned graph, printed
  std::optional<BudgetRecord> budget;

  bool operator==(const PlanRecord&) const = default;
};

}  // namespace stowage::profiler
