// SPDX-License-Identifier: Apache-2.0
#include "solver/formats.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "solver/pointwise.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // written fields keep their order

constexpr std::string_view kStepFormat = "stowage-step/1";
constexpr std::string_view kPlanFormat = "stowage-plan/1";

/// A JSON object of a step file, with words for where it stands: "op 5".
class StepObject {
 public:
  StepObject(const std::string& file, std::string place, const Json& json)
      : file_(file), place_(std::move(place)), json_(json) {
    if (!json.is_object()) refuse("not a JSON object");
  }

  [[noreturn]] void refuse(std::string_view cause) const {
    throw std::invalid_argument(
        fmt::format("cannot read step '{}': {}{}{}", file_, place_, place_.empty() ? "" : ": ", cause));
  }

  bool has(const char* field) const { return json_.contains(field); }

  const Json& get(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end()) refuse(fmt::format("no field '{}'", field));
    return *found;
  }

  const Json& list(const char* field) const {
    const Json& value = get(field);
    if (!value.is_array()) refuse(fmt::format("field '{}' is not a list", field));
    return value;
  }

  std::string text(const char* field) const {
    const Json& value = get(field);
    if (!value.is_string()) refuse(fmt::format("field '{}' is not a string", field));
    return value.get<std::string>();
  }

  bool flag(const char* field) const {
    const Json& value = get(field);
    if (!value.is_boolean()) refuse(fmt::format("field '{}' is not true or false", field));
    return value.get<bool>();
  }

  std::int64_t number(const char* field) const { return to_number(field, get(field)); }

  std::int64_t to_number(const char* field, const Json& value) const {
    const bool too_large =
        value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
    if (!value.is_number_integer() || too_large) {
      refuse(fmt::format("field '{}' holds {}, which is no integer below 2^63", field, describe(value)));
    }
    return value.get<std::int64_t>();
  }

 private:
  static std::string describe(const Json& value) {
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";  // of any depth
    constexpr std::size_t kLongest = 40;
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
  }

  const std::string& file_;
  const std::string place_;
  const Json& json_;
};

/// From the ids in a file to indices.
class IdMap {
 public:
  IdMap(const char* noun, const char* if_missing) : noun_(noun), if_missing_(if_missing) {}

  void add(const StepObject& object) {
    const std::int64_t id = object.number("id");
    const auto [taken, is_new] = indices_.emplace(id, static_cast<std::int32_t>(indices_.size()));
    if (!is_new) object.refuse(fmt::format("field 'id' is {}, as in {} {}", id, noun_, taken->second));
  }

  std::int32_t find(const StepObject& object, const char* field, const Json& value) const {
    const std::int64_t id = object.to_number(field, value);
    const auto found = indices_.find(id);
    if (found == indices_.end())
      object.refuse(fmt::format("field '{}' names {} {}, {}", field, noun_, id, if_missing_));
    return found->second;
  }

  std::vector<std::int32_t> find_all(const StepObject& object, const char* field) const {
    std::vector<std::int32_t> indices;
    for (const Json& value : object.list(field)) indices.push_back(find(object, field, value));
    return indices;
  }

 private:
  const char* noun_;
  const char* if_missing_;
  std::unordered_map<std::int64_t, std::int32_t> indices_;
};

Tensor to_tensor(const StepObject& object) {
  Tensor tensor;
  if (object.has("name")) tensor.name = object.text("name");
  tensor.size_bytes = object.number("size_bytes");
  if (object.has("alignment_bytes")) tensor.alignment_bytes = object.number("alignment_bytes");
  tensor.persistent = object.flag("persistent");
  tensor.output = object.flag("output");
  if (object.has("external")) tensor.external = object.flag("external");
  return tensor;
}

std::vector<Event> to_events(const StepObject& object, const std::string& file, const std::string& place,
                             const IdMap& tensors) {
  std::vector<Event> events;
  if (!object.has("events")) {
    for (const std::int32_t tensor : tensors.find_all(object, "allocates")) {
      events.push_back({Event::Kind::kAllocate, tensor});
    }
    return events;
  }
  std::vector<std::int32_t> allocated;
  const Json& list = object.list("events");
  for (std::size_t index = 0; index < list.size(); ++index) {
    const StepObject event(file, fmt::format("{}: event {}", place, index), list[index]);
    const bool allocates = event.has("allocate");
    const char* field = allocates ? "allocate" : "free";
    if (allocates && event.has("free")) event.refuse("fields 'allocate' and 'free' are both there; write two events");
    events.push_back(
        {allocates ? Event::Kind::kAllocate : Event::Kind::kFree, tensors.find(event, field, event.get(field))});
    if (allocates) allocated.push_back(events.back().tensor);
  }
  if (object.has("allocates") && tensors.find_all(object, "allocates") != allocated) {
    object.refuse("fields 'allocates' and 'events' do not allocate the same tensors in the same order");
  }
  return events;
}

std::vector<Reuse> to_reuses(const StepObject& object, const std::string& file, const std::string& place,
                             const IdMap& tensors) {
  std::vector<Reuse> reuses;
  const Json& list = object.list("reuses");
  for (std::size_t index = 0; index < list.size(); ++index) {
    const StepObject reuse(file, fmt::format("{}: reuse {}", place, index), list[index]);
    reuses.push_back({.output = tensors.find(reuse, "output", reuse.get("output")),
                      .input = tensors.find(reuse, "input", reuse.get("input"))});
  }
  return reuses;
}

/// What a file leaves open: the only result of a pointwise op may take any input of its size.
std::vector<Reuse> derive_reuses(const Problem& problem, const Op& op) {
  std::vector<Reuse> reuses;
  if (!is_pointwise(op.kind) || !op.writes.empty() || op.events.size() != 1) return reuses;
  const std::int32_t output_id = op.events.front().tensor;
  const Tensor& output = problem.tensors[output_id];
  for (const std::int32_t id : op.reads) {
    const Tensor& input = problem.tensors[id];
    const bool is_free = !input.persistent && !input.output && !input.external && !output.external && id != output_id;
    const bool is_alike = input.size_bytes == output.size_bytes && input.alignment_bytes == output.alignment_bytes;
    if (is_free && is_alike) reuses.push_back({.output = output_id, .input = id});
  }
  return reuses;
}

Json parse_json(std::string_view text, const std::string& file) {
  if (text.empty()) {
    throw std::invalid_argument(
        fmt::format("cannot read step '{}': it is empty; it takes the format {}", file, kStepFormat));
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw std::invalid_argument(fmt::format("cannot read step '{}': not valid JSON at byte {}; it takes the format {}",
                                            file, error.byte, kStepFormat));
  } catch (const Json::out_of_range&) {
    throw std::invalid_argument(
        fmt::format("cannot read step '{}': it holds a number beyond 10^308; no field takes one", file));
  }
}

}  // namespace

Problem parse_step(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const StepObject step(file, "", json);
  if (const std::string format = step.text("format"); format != kStepFormat) {
    step.refuse(fmt::format("its format is {}, this build reads '{}'", quote(format), kStepFormat));
  }
  Problem problem;
  problem.name = step.text("name");
  IdMap tensors("tensor", "which is not there");
  for (const Json& entry : step.list("tensors")) {
    const StepObject object(file, fmt::format("tensor {}", problem.tensors.size()), entry);
    tensors.add(object);
    problem.tensors.push_back(to_tensor(object));
  }
  IdMap ops("op", "which is not an earlier one");
  for (const Json& entry : step.list("ops")) {
    const std::string place = fmt::format("op {}", problem.ops.size());
    const StepObject object(file, place, entry);
    Op op;
    op.name = object.text("name");
    op.kind = object.text("kind");
    if (object.has("duration_ns")) op.duration_ns = object.number("duration_ns");
    op.reads = tensors.find_all(object, "reads");
    op.writes = tensors.find_all(object, "writes");
    op.events = to_events(object, file, place, tensors);
    op.reuses = object.has("reuses") ? to_reuses(object, file, place, tensors) : derive_reuses(problem, op);
    // Before its own id is known, so that only earlier ops can be named: no cycles.
    if (object.has("after")) op.after = ops.find_all(object, "after");
    if (object.has("views")) op.views = ops.find_all(object, "views");
    if (object.has("repeatable")) op.repeatable = object.flag("repeatable");
    ops.add(object);
    problem.ops.push_back(std::move(op));
  }
  if (problem.ops.empty()) step.refuse("field 'ops' is empty; there is nothing to plan");
  if (const auto fault = find_fault(problem)) step.refuse(*fault);
  return problem;
}

Problem read_step(const std::string& path) { return parse_step(read_file("step", path), path); }

std::string format_step(const Problem& problem) {
  OrderedJson tensors = OrderedJson::array();
  for (std::size_t id = 0; id < problem.tensors.size(); ++id) {
    const Tensor& tensor = problem.tensors[id];
    OrderedJson entry = {{"id", id}};
    if (!tensor.name.empty()) entry["name"] = tensor.name;
    entry["size_bytes"] = tensor.size_bytes;
    if (tensor.alignment_bytes != Tensor{}.alignment_bytes) entry["alignment_bytes"] = tensor.alignment_bytes;
    entry["persistent"] = tensor.persistent;
    entry["output"] = tensor.output;
    if (tensor.external) entry["external"] = true;
    tensors.push_back(std::move(entry));
  }
  OrderedJson ops = OrderedJson::array();
  for (std::size_t id = 0; id < problem.ops.size(); ++id) {
    const Op& op = problem.ops[id];
    OrderedJson entry = {{"id", id}, {"name", op.name}, {"kind", op.kind}};
    if (op.duration_ns != 0) entry["duration_ns"] = op.duration_ns;
    entry["reads"] = op.reads;
    entry["writes"] = op.writes;
    OrderedJson allocates = OrderedJson::array();
    OrderedJson events = OrderedJson::array();
    for (const Event& event : op.events) {
      const bool is_allocation = event.kind == Event::Kind::kAllocate;
      if (is_allocation) allocates.push_back(event.tensor);
      events.push_back({{is_allocation ? "allocate" : "free", event.tensor}});
    }
    const bool frees = allocates.size() != events.size();
    entry["allocates"] = std::move(allocates);
    if (frees) entry["events"] = std::move(events);
    if (!op.after.empty()) entry["after"] = op.after;
    if (!op.views.empty()) entry["views"] = op.views;
    if (op.repeatable) entry["repeatable"] = true;
    if (!op.reuses.empty() || is_pointwise(op.kind)) {  // an empty list, so that none are derived
      entry["reuses"] = OrderedJson::array();
      for (const Reuse& reuse : op.reuses) {
        entry["reuses"].push_back({{"output", reuse.output}, {"input", reuse.input}});
      }
    }
    ops.push_back(std::move(entry));
  }
  const OrderedJson step = {
      {"format", kStepFormat}, {"name", problem.name}, {"tensors", std::move(tensors)}, {"ops", std::move(ops)}};
  return step.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string format_plan(const Problem& problem, const Plan& plan) {
  const OrderedJson json = {{"format", kPlanFormat},
                            {"name", problem.name},
                            {"order_status", to_string(plan.order_status)},
                            {"layout_status", to_string(plan.layout_status)},
                            {"peak_bytes", plan.peak_bytes},
                            {"program_peak_bytes", plan.program_peak_bytes},
                            {"bound_bytes", plan.bound_bytes},
                            {"bound_op", plan.bound_op},
                            {"bound_proof", to_string(plan.bound_proof)},
                            {"arena_bytes", plan.arena_bytes},
                            {"arena_bound_bytes", plan.arena_bound_bytes},
                            {"order", plan.order},
                            {"offset_bytes", plan.offset_bytes},
                            {"reuse_of", plan.reuse_of},
                            {"frees_after", plan.frees_after}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string read_file(std::string_view what, const std::string& path) {
  const auto refuse = [&](std::string_view cause) {
    throw std::invalid_argument(fmt::format("cannot read {} '{}': {}", what, path, cause));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse("it is a folder; name a file");
  const gzFile file = gzopen(path.c_str(), "rb");  // reads plain files too
  if (file == nullptr) refuse(fmt::format("{}; check the path", std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> buffer;
  int count = 0;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0) text.append(buffer.data(), count);
  // A stream that was cut short is an error only when it is closed.
  const int close_result = gzclose(file);
  if (count < 0 || close_result != Z_OK) refuse("the compressed data is damaged or cut short; copy the file again");
  return text;
}

void write_file(const std::string& path, std::string_view text, bool force) {
  const auto refuse = [&path](std::string_view cause) {
    throw std::runtime_error(fmt::format("cannot write '{}': {}", path, cause));
  };
  std::error_code ignored;
  if (!force && std::filesystem::exists(path, ignored)) refuse("it exists; use --force to replace it");
  const gzFile file = gzopen(path.c_str(), path.ends_with(".gz") ? "wb" : "wbT");  // T: without compression
  if (file == nullptr) refuse(fmt::format("{}; check the path", std::strerror(errno)));
  const std::size_t written = gzfwrite(text.data(), 1, text.size(), file);
  const int close_result = gzclose(file);
  if (written != text.size() || close_result != Z_OK) refuse("not all of it could be written; check the free space");
}

}  // namespace stowage::solver
