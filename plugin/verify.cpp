// SPDX-License-Identifier: Apache-2.0
#include "plugin/verify.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plugin/checks.h"
#include "plugin/note.h"
#include "plugin/snapshot.h"

namespace stowage {
namespace {

using profiler::kNone;
using torch::jit::InterpreterState;
using torch::jit::Stack;

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

std::string op_text(const profiler::Run& run, std::int32_t op) {
  const profiler::OpRecord& record = run.ops[index(op)];
  const std::string source = record.source.empty() ? "" : ", " + record.source;
  return fmt::format("op {} '{}' ({}{})", op, record.name, record.kind, source);
}

/// The first execution of an op of the program, in the order of the run.
std::int32_t execution_of(const profiler::Run& run, std::int32_t program_op) {
  for (std::size_t op = 0; op < run.ops.size(); ++op) {
    if (run.ops[op].program_op == program_op) return static_cast<std::int32_t>(op);
  }
  return program_op;
}

/// The line of a message that says what happened.
std::string cause(const std::string& text) {
  const std::string traced = "\nRuntimeError: ";  // below the TorchScript traceback
  const std::size_t at = text.find(traced);
  return first_line(at == std::string::npos ? text : text.substr(at + traced.size()));
}

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

Verifier::Verifier(const GraphFacts& program, const GraphFacts& facts, const profiler::Run& run,
                   const profiler::PlanRecord& plan)
    : program_(program),
      run_(run),
      plan_(plan),
      program_code_(checked_program(program), "stowage"),
      planned_code_(checked_plan(program, facts, run, plan), "stowage") {}

Verdict Verifier::run(Stack& stack, const RunPlanned& run_planned) const {
  const Stack inputs = stack;
  Snapshot before(inputs, *program_.graph);
  Checks checks(program_.ops.size());
  auto run_program = [&](Checks::Run which) {
    const Checks::Current current(checks, which);
    InterpreterState(program_code_).run(stack);
  };
  auto start_again = [&] {
    stack = inputs;
    before.restore();
  };

  run_program(Checks::Run::kProgram);
  Verdict verdict;
  verdict.unread = checks.unread();
  verdict.why_not = before.why_lost();
  if (!verdict.why_not.empty()) return verdict;
  const std::vector<Snapshot::State> expected = states_after(before, stack);

  start_again();
  std::string difference;
  try {
    const Checks::Current current(checks, Checks::Run::kPlanned);
    if (!run_planned(stack, planned_code_)) verdict.why_not = "another run had the arena";
  } catch (const std::exception& failure) {
    difference = fmt::format("the planned run raised an error, the unplanned one did not: {}", cause(failure.what()));
    if (checks.last_execution() != kNone) {
      difference += fmt::format(" (after {})", op_text(run_, checks.last_execution()));
    }
  }
  if (!verdict.why_not.empty()) {
    start_again();
    run_program(Checks::Run::kProgramAgain);
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
  run_program(Checks::Run::kProgramAgain);
  verdict.difference = checks.first() ? describe(checks) : nlohmann::json{{"text", difference}};
  if (const auto& unsaid = checks.unsaid_write()) {
    verdict.difference["cause"] =
        fmt::format("{} writes '{}', which its schema does not say", op_text(run_, execution_of(run_, unsaid->op)),
                    watched_values(program_.ops[index(unsaid->op)])[unsaid->position]->debugName());
  }
  return verdict;
}

nlohmann::json Verifier::describe(const Checks& checks) const {
  const Checks::First& first = *checks.first();
  const profiler::OpRecord& op = run_.ops[index(first.execution)];
  const Checked checked = checked_values(program_.ops[index(first.op)])[first.position];
  const std::string& planned = first.planned.bytes;
  const std::string& program = first.program.bytes;
  nlohmann::json json{{"op", first.execution}, {"name", op.name},      {"kind", op.kind},
                      {"source", op.source},   {"what", checked.what}, {"by_itself", first.by_itself}};
  std::string text = fmt::format("{}: {} differs from the unplanned run", op_text(run_, first.execution), checked.what);
  if (first.planned.appearance != first.program.appearance || planned.size() != program.size()) {
    text += fmt::format(": {} instead of {}", first.planned.appearance, first.program.appearance);
  } else if (planned != program) {
    std::size_t different = 0;
    for (std::size_t byte = 0; byte < planned.size(); ++byte) different += planned[byte] != program[byte];
    const auto first_byte = std::mismatch(planned.begin(), planned.end(), program.begin()).first - planned.begin();
    json["differing_bytes"] = different;
    json["size_bytes"] = planned.size();
    json["first_byte"] = first_byte;
    text += fmt::format(" in {} of {} bytes, first at byte {}", different, planned.size(), first_byte);
  }
  if (first.by_itself) text += "; two unplanned runs differ there, too: the op's result is not a matter of its inputs";
  json["text"] = std::move(text);
  json["nearby"] = nearby(first.execution);
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
    const std::int64_t planned_run = verified_runs + differing_runs;
    const std::string text =
        fmt::format("{}; planned run {}", verdict.difference.at("text").get<std::string>(), planned_run);
    first_difference = verdict.difference;
    first_difference["planned_run"] = planned_run;
    first_difference["text"] = text;
    std::string more;
    for (const char* key : {"cause", "nearby"}) {
      if (verdict.difference.contains(key)) more += "; " + verdict.difference.at(key).get<std::string>();
    }
    note(fmt::format("'{}': {}{}; the unplanned results are given", region, text, more));
  }
}

nlohmann::json VerifyTotal::status() const {
  return {
      {"verified_runs", verified_runs},   {"differing_runs", differing_runs}, {"unverified_runs", unverified_runs},
      {"why_unverified", why_unverified}, {"unread_values", unread},          {"first_difference", first_difference}};
}

bool is_verifying() { return Checks::current() != nullptr; }

}  // namespace stowage
