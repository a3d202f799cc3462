// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/dependencies.h"
#include "plugin/tensor_bytes.h"
#include "plugin/torch_headers.h"
#include "profiler/record.h"

namespace stowage {

/// A value that shows what an op has done, and what it is to the op: "output 0".
struct Checked {
  const torch::jit::Value* value;
  std::string what;
  std::size_t place;  ///< the same for another execution of the op
};

/// An op's outputs, and what it writes and does not return. An output that nobody uses does not matter, and some
/// kernels leave such ones unwritten.
std::vector<Checked> checked_values(const OpFacts& op);

/// What an op uses; nothing where it says that it writes, since what it may write of that is not told apart.
std::vector<const torch::jit::Value*> watched_values(const OpFacts& op);

/// Copies of a graph, as the program has it and as the plan does, with `stowage::check[op](%checked...)` after every
/// op. A check holds nothing once it has run, and the planned allocator sees nothing of it. In the program's copy
/// `stowage::watch[op](%watched...)` stands before and after every op. `facts` are of the graph that was planned: the
/// program, or one in which its ops run again, each of whose executions must show what the op does.
std::shared_ptr<torch::jit::Graph> checked_program(const GraphFacts& program);
std::shared_ptr<torch::jit::Graph> checked_plan(const GraphFacts& program, const GraphFacts& facts,
                                                const profiler::Run& run, const profiler::PlanRecord& plan);

/// What the checks of one verified run see: digests, and of the first value that differs its bytes.
class Checks {
 public:
  struct Seen {
    std::string bytes;
    std::string appearance;  ///< what tells values apart beside their bytes
  };
  struct First {
    std::int32_t op = 0;         ///< of the program
    std::int32_t execution = 0;  ///< of it, as an op of the planned graph
    std::size_t position = 0;    ///< among the op's checked values
    Seen planned;
    Seen program;            ///< in the program's second run
    bool by_itself = false;  ///< the program's two runs differ there, too
  };
  /// An op that writes what it says it only reads.
  struct UnsaidWrite {
    std::int32_t op = 0;
    std::size_t position = 0;  ///< among the op's watched values
  };
  enum class Run : std::uint8_t { kProgram, kPlanned, kProgramAgain };

  /// `ops`: of the program.
  explicit Checks(std::size_t ops) : digests_(ops) {}

  /// The calling thread's, or null.
  static Checks* current() { return t_current; }

  /// While this lives, `checks` are the thread's.
  struct Current {
    Current(Checks& checks, Run run);
    ~Current();
  };

  /// Op `op` has left its checked values at `positions` so.
  void see(std::int32_t op, std::int32_t execution, const std::vector<std::int64_t>& positions,
           c10::ArrayRef<c10::IValue> values);

  /// Op `op` is about to use these values, or has just done so. Looked into in the program's second run only.
  void watch(std::int32_t op, c10::ArrayRef<c10::IValue> values, bool after);

  /// The first that differs, in planned order.
  const std::optional<First>& first() const { return first_; }
  const std::optional<UnsaidWrite>& unsaid_write() const { return unsaid_write_; }
  std::int32_t last_execution() const { return last_execution_; }  ///< which was seen last; -1: none
  std::int64_t unread() const { return unread_; }                  ///< tensors whose bytes cannot be read

 private:
  static thread_local Checks* t_current;

  std::vector<std::vector<Digest>> digests_;  ///< by op, of the program's first run
  std::optional<First> first_;
  std::vector<Digest> watched_;  ///< before the present op
  std::optional<UnsaidWrite> unsaid_write_;
  std::int32_t last_execution_ = profiler::kNone;
  std::int64_t unread_ = 0;
  Run run_ = Run::kProgram;
};

/// The operators of the checks.
torch::jit::RegisterOperators register_check_operators();

}  // namespace stowage
