// SPDX-License-Identifier: Apache-2.0
#include "plugin/verify.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plugin/note.h"
#include "plugin/rewrite.h"
#include "plugin/snapshot.h"
#include "plugin/tensor_bytes.h"

namespace stowage {
namespace {

using profiler::kNone;
using torch::jit::Code;
using torch::jit::Graph;
using torch::jit::InterpreterState;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Symbol;
using torch::jit::Value;

// Functions, since operators are registered before this file's constants would be initialised.
Symbol check_symbol() { return Symbol::fromQualString("stowage::check"); }
Symbol op_attribute() { return Symbol::attr("op"); }
Symbol fill_attribute() { return Symbol::attr("fill"); }

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

/// Ops whose results nobody has written yet.
bool returns_unwritten(const Node& node) {
  for (const char* kind : {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided",
                           "aten::new_empty_strided", "aten::empty_permuted"}) {
    if (node.kind() == Symbol::fromQualString(kind)) return true;
  }
  return false;
}

/// Ops whose results are in part unwritten: only what is written over them can be compared.
bool returns_partly_unwritten(const Node& node) {
  for (const char* kind : {"aten::resize", "aten::resize_", "aten::resize_as_"}) {
    if (node.kind() == Symbol::fromQualString(kind)) return true;
  }
  return false;
}

/// Which values show what an op has done: its outputs, and what it writes and does not return. An output that nobody
/// uses does not matter, and some kernels leave such ones unwritten.
struct Checked {
  const Value* value;
  std::string what;
};

std::vector<Checked> checked_values(const OpFacts& op) {
  std::vector<Checked> checked;
  if (returns_partly_unwritten(*op.node)) return checked;
  for (std::size_t output = 0; output < op.node->outputs().size(); ++output) {
    const Value* value = op.node->outputs()[output];
    if (value->hasUses() || !op.writes.empty()) checked.push_back({value, fmt::format("output {}", output)});
  }
  for (const Value* written : op.writes) {
    const bool returned = std::any_of(op.may_return.begin(), op.may_return.end(), [&](const auto& may_return) {
      return std::find(may_return.begin(), may_return.end(), written) != may_return.end();
    });
    if (!returned) checked.push_back({written, fmt::format("'{}', which it writes,", written->debugName())});
  }
  return checked;
}

/// Puts a check after each op. `nodes[op]` is op `op` in `copy`, which has the ops of `facts` in any order.
void add_checks(Graph& copy, const std::vector<Node*>& nodes, const GraphFacts& facts) {
  std::unordered_map<const Value*, Value*> copied;
  for (std::size_t input = 0; input < copy.inputs().size(); ++input) {
    copied[facts.graph->inputs()[input]] = copy.inputs()[input];
  }
  for (std::size_t op = 0; op < nodes.size(); ++op) {
    const auto outputs = facts.ops[op].node->outputs();
    for (std::size_t output = 0; output < outputs.size(); ++output)
      copied[outputs[output]] = nodes[op]->outputs()[output];
  }
  for (std::size_t op = 0; op < nodes.size(); ++op) {
    std::vector<Value*> values;
    for (const Checked& checked : checked_values(facts.ops[op])) values.push_back(copied.at(checked.value));
    Node* check = copy.create(check_symbol(), values, /*num_outputs=*/0);
    check->i_(op_attribute(), static_cast<std::int64_t>(op));
    check->i_(fill_attribute(), returns_unwritten(*nodes[op]));
    check->insertAfter(nodes[op]);
  }
}

bool is_point(const Node& node) {
  return node.kind() == Symbol::fromQualString("stowage::place") ||
         node.kind() == Symbol::fromQualString("stowage::reuse") ||
         node.kind() == Symbol::fromQualString("stowage::free");
}

/// The ops of a graph in the order in which it has them.
std::vector<Node*> ops_of(Graph& graph) {
  std::vector<Node*> nodes;
  for (Node* node : graph.nodes()) {
    if (node->kind() != torch::jit::prim::Constant && !is_point(*node)) nodes.push_back(node);
  }
  return nodes;
}

std::shared_ptr<Graph> checked_program(const GraphFacts& facts) {
  std::shared_ptr<Graph> copy = facts.graph->copy();
  add_checks(*copy, ops_of(*copy), facts);
  return copy;
}

std::shared_ptr<Graph> checked_plan(const GraphFacts& facts, const profiler::Run& run,
                                    const profiler::PlanRecord& plan) {
  std::shared_ptr<Graph> copy = planned_copy(facts, run, plan);
  const std::vector<Node*> in_order = ops_of(*copy);
  std::vector<Node*> nodes(in_order.size());
  for (std::size_t step = 0; step < in_order.size(); ++step) nodes[index(plan.order[step])] = in_order[step];
  add_checks(*copy, nodes, facts);
  return copy;
}

/// What tells two values apart beside their bytes.
std::string appearance(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& tensor = value.toTensor();
    return fmt::format("{}[{}] with strides [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                       fmt::join(tensor.strides(), ", "));
  }
  if (!value.isInt() && !value.isDouble() && !value.isBool() && !value.isString()) return value.tagKind();
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string op_text(const profiler::Run& run, std::int32_t op) {
  const profiler::OpRecord& record = run.ops[index(op)];
  const std::string source = record.source.empty() ? "" : ", " + record.source;
  return fmt::format("op {} '{}' ({}{})", op, record.name, record.kind, source);
}

/// PyTorch's messages go on for pages: the line that says what happened.
std::string cause(const std::string& text) {
  const std::string traced = "\nRuntimeError: ";  // below the TorchScript traceback
  const std::size_t at = text.find(traced);
  const std::size_t begin = at != std::string::npos ? at + traced.size() : text.find_first_not_of('\n');
  return begin == std::string::npos ? text : text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

/// What the checks of a verified run see. Nothing of a value is held on to but the bytes of the first that differs.
class VerifyChecks {
 public:
  struct Seen {
    std::string bytes;
    std::string appearance;
  };
  struct First {
    std::int32_t op;
    std::size_t position;  ///< among the values of the op's check
    Seen planned;
    Seen program;            ///< of the last run of the program
    bool by_itself = false;  ///< it differs between two runs of the program, too
  };
  enum class Run : std::uint8_t { kProgram, kPlanned, kProgramAgain };

  explicit VerifyChecks(std::size_t ops) : digests_(ops) {}

  static VerifyChecks* current() { return t_current; }

  /// While this lives, the thread's checks are these.
  struct Current {
    Current(VerifyChecks& checks, Run run) {
      checks.run_ = run;
      t_current = &checks;
    }
    ~Current() { t_current = nullptr; }
  };

  void see(std::int32_t op, c10::ArrayRef<c10::IValue> values) {
    last_op_ = op;
    auto& digests = digests_[index(op)];
    for (std::size_t position = 0; position < values.size(); ++position) {
      std::int64_t unread = 0;
      const Digest now = digest(values[position], unread);
      if (run_ == Run::kProgram) {
        digests.push_back(now);
        unread_ += unread;
      } else if (run_ == Run::kPlanned) {
        if (!first_ && now != digests[position]) first_ = First{op, position, look_at(values[position]), {}};
      } else if (first_ && first_->op == op && first_->position == position) {
        first_->program = look_at(values[position]);
        first_->by_itself = now != digests[position];
      }
    }
  }

  const std::optional<First>& first() const { return first_; }
  std::int32_t last_op() const { return last_op_; }
  std::int64_t unread() const { return unread_; }

 private:
  static Seen look_at(const c10::IValue& value) { return {bytes_of(value), appearance(value)}; }

  static thread_local VerifyChecks* t_current;

  std::vector<std::vector<Digest>> digests_;  ///< by op
  std::optional<First> first_;
  std::int32_t last_op_ = kNone;
  std::int64_t unread_ = 0;
  Run run_ = Run::kProgram;
};

thread_local VerifyChecks* VerifyChecks::t_current = nullptr;

namespace {

/// What is left when a run is over: outputs, and what was there before.
std::vector<Snapshot::State> states_after(const Snapshot& before, const Stack& outputs) {
  std::vector<Snapshot::State> states = before.states();
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    std::int64_t unread = 0;
    states.push_back({fmt::format("output {} of the graph", output), digest(outputs[output], unread)});
  }
  return states;
}

}  // namespace

Verifier::Verifier(const GraphFacts& facts, const profiler::Run& run, const profiler::PlanRecord& plan)
    : facts_(facts),
      run_(run),
      plan_(plan),
      program_(checked_program(facts), "stowage"),
      planned_(checked_plan(facts, run, plan), "stowage") {}

Verdict Verifier::run(Stack& stack, const RunPlanned& run_planned) const {
  const Stack inputs = stack;
  Snapshot before(inputs, *facts_.graph);
  VerifyChecks checks(facts_.ops.size());
  auto run_program = [&](VerifyChecks::Run which) {
    const VerifyChecks::Current current(checks, which);
    InterpreterState(program_).run(stack);
  };
  auto start_again = [&] {
    stack = inputs;
    before.restore();
  };

  run_program(VerifyChecks::Run::kProgram);
  Verdict verdict;
  verdict.unread = checks.unread();
  verdict.why_not = before.why_lost();
  if (!verdict.why_not.empty()) return verdict;
  const std::vector<Snapshot::State> expected = states_after(before, stack);

  start_again();
  std::string difference;
  try {
    const VerifyChecks::Current current(checks, VerifyChecks::Run::kPlanned);
    if (!run_planned(stack, planned_)) verdict.why_not = "another run had the arena";
  } catch (const std::exception& failure) {
    difference = fmt::format("the planned run raised an error, the unplanned one did not: {}", cause(failure.what()));
    if (checks.last_op() != kNone) difference += fmt::format(" (after {})", op_text(run_, checks.last_op()));
  }
  if (!verdict.why_not.empty()) {
    start_again();
    run_program(VerifyChecks::Run::kProgramAgain);
    return verdict;
  }
  if (difference.empty() && !checks.first()) {
    const std::vector<Snapshot::State> found = states_after(before, stack);
    for (std::size_t each = 0; each < expected.size() && difference.empty(); ++each) {
      if (found[each].digest != expected[each].digest) {
        difference = fmt::format("after the run {} differs from the unplanned run", expected[each].name);
      }
    }
    if (difference.empty()) return verdict;
  }

  start_again();
  run_program(VerifyChecks::Run::kProgramAgain);
  verdict.difference = checks.first() ? describe(checks) : nlohmann::json{{"text", difference}};
  return verdict;
}

nlohmann::json Verifier::describe(const VerifyChecks& checks) const {
  const VerifyChecks::First& first = *checks.first();
  const profiler::OpRecord& op = run_.ops[index(first.op)];
  const Checked checked = checked_values(facts_.ops[index(first.op)])[first.position];
  const std::string& planned = first.planned.bytes;
  const std::string& program = first.program.bytes;
  nlohmann::json json{{"op", first.op},      {"name", op.name},      {"kind", op.kind},
                      {"source", op.source}, {"what", checked.what}, {"by_itself", first.by_itself}};
  std::string text = fmt::format("{}: {} differs from the unplanned run", op_text(run_, first.op), checked.what);
  if (first.planned.appearance != first.program.appearance || planned.size() != program.size()) {
    text += fmt::format(": {} instead of {}", first.planned.appearance, first.program.appearance);
  } else if (!planned.empty()) {
    std::size_t different = 0;
    std::size_t first_byte = planned.size();
    for (std::size_t byte = planned.size(); byte-- > 0;) {
      if (planned[byte] == program[byte]) continue;
      ++different;
      first_byte = byte;
    }
    json["differing_bytes"] = different;
    json["size_bytes"] = planned.size();
    json["first_byte"] = first_byte;
    text += fmt::format(" in {} of {} bytes, first at byte {}", different, planned.size(), first_byte);
  }
  if (first.by_itself) text += "; two unplanned runs differ there, too: the op's result is not a matter of its inputs";
  json["text"] = std::move(text);
  json["nearby"] = nearby(first.op);
  return json;
}

/// Where the plan has what the op reads and makes, and what had that memory before.
std::string Verifier::nearby(std::int32_t op) const {
  std::vector<const profiler::SlotRecord*> slot_of(run_.tensors.size(), nullptr);
  for (const profiler::SlotRecord& slot : plan_.slots) slot_of[index(slot.tensor)] = &slot;
  std::vector<std::size_t> step_of(run_.ops.size());
  for (std::size_t step = 0; step < plan_.order.size(); ++step) step_of[index(plan_.order[step])] = step;
  std::vector<std::int32_t> made_by(run_.tensors.size(), kNone);
  for (const profiler::AllocationRecord& allocation : run_.allocations) {
    made_by[index(allocation.tensor)] = allocation.op;
  }
  auto place = [&](std::int32_t tensor) {
    const profiler::SlotRecord& slot = *slot_of[index(tensor)];
    std::string text = fmt::format("'{}' at [{}, {})", run_.tensors[index(tensor)].name, slot.offset_bytes,
                                   slot.offset_bytes + slot.size_bytes);
    const profiler::SlotRecord* before = nullptr;
    for (const profiler::SlotRecord& other : plan_.slots) {
      const bool overlaps = other.offset_bytes < slot.offset_bytes + slot.size_bytes &&
                            slot.offset_bytes < other.offset_bytes + other.size_bytes;
      const auto step = [&](const profiler::SlotRecord& of) { return step_of[index(made_by[index(of.tensor)])]; };
      if (overlaps && step(other) < step(slot) && (before == nullptr || step(*before) < step(other))) before = &other;
    }
    if (before != nullptr) text += fmt::format(" after '{}'", run_.tensors[index(before->tensor)].name);
    return text;
  };

  std::vector<std::int32_t> seen;
  std::vector<std::string> reads;
  std::vector<std::string> results;
  for (const profiler::UseRecord& use : run_.uses) {
    const bool is_new = std::find(seen.begin(), seen.end(), use.tensor) == seen.end();
    if (use.op != op || slot_of[index(use.tensor)] == nullptr || !is_new) continue;
    seen.push_back(use.tensor);
    (use.kind == profiler::UseKind::kResult ? results : reads).push_back(place(use.tensor));
  }
  std::string text = fmt::format("step {} of the plan", step_of[index(op)]);
  if (!reads.empty()) text += fmt::format("; reads {}", fmt::join(reads, ", "));
  if (!results.empty()) text += fmt::format("; makes {}", fmt::join(results, ", "));
  return text;
}

void VerifyTotal::add(const Verdict& verdict, const std::string& region) {
  unread = verdict.unread;
  if (!verdict.why_not.empty()) {
    ++unverified_runs;
    why_unverified = verdict.why_not;
  } else if (verdict.difference.is_null()) {
    ++verified_runs;
  } else if (++differing_runs == 1) {
    first_difference = verdict.difference;
    first_difference["planned_run"] = verified_runs + differing_runs;
    const std::string text = fmt::format("{}; planned run {}", verdict.difference.at("text").get<std::string>(),
                                         verified_runs + differing_runs);
    first_difference["text"] = text;
    std::string where = verdict.difference.value("nearby", "");
    note(fmt::format("'{}': {}{}; the unplanned results are given", region, text,
                     where.empty() ? "" : " (" + where + ")"));
  }
}

nlohmann::json VerifyTotal::status() const {
  return {
      {"verified_runs", verified_runs},   {"differing_runs", differing_runs}, {"unverified_runs", unverified_runs},
      {"why_unverified", why_unverified}, {"unread_values", unread},          {"first_difference", first_difference}};
}

bool is_verifying() { return VerifyChecks::current() != nullptr; }

torch::jit::RegisterOperators register_verify_operators() {
  auto make_check = [](const Node* node) -> torch::jit::Operation {
    return [op = static_cast<std::int32_t>(node->i(op_attribute())), fill = node->i(fill_attribute()) != 0,
            count = node->inputs().size()](Stack& stack) {
      const auto values = torch::jit::last(stack, count);
      // Bytes that are never written are any bytes: the same in all runs, they tell no difference.
      if (fill) {
        for (const c10::IValue& value : values) {
          const c10::Storage& storage = value.toTensor().storage();
          if (value.toTensor().device().is_cpu()) std::memset(storage.mutable_data(), 0, storage.nbytes());
        }
      }
      VerifyChecks::current()->see(op, values);
      torch::jit::drop(stack, count);
    };
  };
  return torch::jit::RegisterOperators(
      {torch::jit::Operator(check_symbol(), make_check, c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
