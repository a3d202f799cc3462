// SPDX-License-Identifier: Apache-2.0
#include "solver/formats.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

namespace stowage::solver {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // written fields keep their order

constexpr std::string_view kStepFormat = "stowage-step/1";
constexpr std::string_view kPlanFormat = "stowage-plan/1";

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

// --- step JSON ---------------------------------------------------------------------------------------------------

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
      refuse(fmt::format("field '{}' holds {}, which is no integer below 2^63", field, shorten(value)));
    }
    return value.get<std::int64_t>();
  }

 private:
  static std::string shorten(const Json& value) {
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
  explicit IdMap(const char* noun) : noun_(noun) {}

  void add(const StepObject& object) {
    const std::int64_t id = object.number("id");
    const auto [taken, is_new] = indices_.emplace(id, static_cast<std::int32_t>(indices_.size()));
    if (!is_new) object.refuse(fmt::format("field 'id' is {}, as in {} {}", id, noun_, taken->second));
  }

  std::int32_t find(const StepObject& object, const char* field, const Json& value) const {
    const std::int64_t id = object.to_number(field, value);
    const auto found = indices_.find(id);
    if (found == indices_.end())
      object.refuse(fmt::format("field '{}' names {} {}, which is not there", field, noun_, id));
    return found->second;
  }

  std::vector<std::int32_t> find_all(const StepObject& object, const char* field) const {
    std::vector<std::int32_t> indices;
    for (const Json& value : object.list(field)) indices.push_back(find(object, field, value));
    return indices;
  }

 private:
  const char* noun_;
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
    events.push_back(
        {allocates ? Event::Kind::kAllocate : Event::Kind::kFree, tensors.find(event, field, event.get(field))});
    if (allocates) allocated.push_back(events.back().tensor);
  }
  if (object.has("allocates") && tensors.find_all(object, "allocates") != allocated) {
    object.refuse("fields 'allocates' and 'events' do not allocate the same tensors in the same order");
  }
  return events;
}

Json parse_json(std::string_view text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw std::invalid_argument(fmt::format("cannot read step '{}': not valid JSON at byte {}; it takes the format {}",
                                            file, error.byte, kStepFormat));
  }
}

// --- buffer CSV --------------------------------------------------------------------------------------------------

enum Column : std::size_t { kId, kLower, kUpper, kSize, kOffset, kAlignment, kColumnCount };
constexpr std::array<std::string_view, kColumnCount> kColumnNames = {"id",   "lower",  "upper",
                                                                     "size", "offset", "alignment"};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

class CsvReader {
 public:
  explicit CsvReader(const std::string& file) : file_(file) { field_of_.fill(kAbsent); }

  std::vector<Buffer> read(std::string_view text) {
    std::vector<Buffer> buffers;
    while (!text.empty()) {
      ++row_;
      const std::size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (row_ == 1) {
        read_header(line);
      } else if (!line.empty()) {
        buffers.push_back(read_buffer(split(line)));
      }
    }
    if (buffers.empty()) refuse("no buffers; it takes a header id,lower,upper,size[,offset][,alignment] and rows");
    return buffers;
  }

 private:
  static constexpr std::size_t kAbsent = std::numeric_limits<std::size_t>::max();

  [[noreturn]] void refuse(std::string_view cause) const {
    throw std::invalid_argument(fmt::format("cannot read buffers '{}': {}", file_, cause));
  }
  [[noreturn]] void refuse(Column column, std::string_view cause) const {
    refuse(fmt::format("row {}, column '{}': {}", row_, kColumnNames[column], cause));
  }

  void read_header(std::string_view line) {
    const std::vector<std::string_view> names = split(line);
    field_count_ = names.size();
    for (std::size_t field = 0; field < names.size(); ++field) {
      std::size_t column = 0;
      while (column < kColumnCount && kColumnNames[column] != names[field]) ++column;
      constexpr std::size_t kLongest = 40;
      const std::string_view name = names[field].substr(0, kLongest);
      if (column == kColumnCount) {
        refuse(fmt::format("row 1: unknown column '{}'; the header is id,lower,upper,size[,offset][,alignment]", name));
      }
      if (field_of_[column] != kAbsent) refuse(fmt::format("row 1: column '{}' is there twice", name));
      field_of_[column] = field;
    }
    for (const Column column : {kId, kLower, kUpper, kSize}) {
      if (field_of_[column] != kAbsent) continue;
      refuse(fmt::format("row 1: no column '{}'; the header is id,lower,upper,size[,offset][,alignment]",
                         kColumnNames[column]));
    }
  }

  Buffer read_buffer(const std::vector<std::string_view>& fields) {
    if (fields.size() != field_count_) {
      refuse(fmt::format("row {}: {} fields, the header has {}", row_, fields.size(), field_count_));
    }
    const auto has = [&](Column column) { return field_of_[column] != kAbsent && !fields[field_of_[column]].empty(); };
    const auto number = [&](Column column) { return to_number(column, fields[field_of_[column]]); };
    Buffer buffer;
    buffer.id = fields[field_of_[kId]];
    buffer.lower = number(kLower);
    buffer.upper = number(kUpper);
    buffer.size_bytes = number(kSize);
    if (has(kOffset)) buffer.fixed_offset_bytes = number(kOffset);
    if (has(kAlignment)) buffer.alignment_bytes = number(kAlignment);
    if (buffer.upper <= buffer.lower) {
      refuse(kUpper, fmt::format("{} is not above lower {}; upper is exclusive", buffer.upper, buffer.lower));
    }
    if (buffer.alignment_bytes == 0) refuse(kAlignment, "0 is no alignment; use 1 for none");
    const auto [taken, is_new] = row_of_id_.emplace(buffer.id, row_);
    if (!is_new) refuse(kId, fmt::format("'{}' is taken by row {}", buffer.id, taken->second));
    return buffer;
  }

  std::int64_t to_number(Column column, std::string_view text) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_integer = error == std::errc() && end == text.data() + text.size();
    if (!is_integer || value < 0 || value >= std::int64_t{1} << 62) {
      refuse(column, fmt::format("'{}' is no integer from 0 to 2^62 - 1", text.substr(0, 40)));
    }
    return value;
  }

  const std::string& file_;
  std::int64_t row_ = 0;  ///< from 1, the header's
  std::size_t field_count_ = 0;
  std::array<std::size_t, kColumnCount> field_of_;  ///< by column: where in a row it stands
  std::unordered_map<std::string, std::int64_t> row_of_id_;
};

}  // namespace

Problem parse_step(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const StepObject step(file, "", json);
  if (const std::string format = step.text("format"); format != kStepFormat) {
    step.refuse(fmt::format("its format is '{}', this build reads '{}'", format, kStepFormat));
  }
  Problem problem;
  problem.name = step.text("name");
  IdMap tensors("tensor");
  for (const Json& entry : step.list("tensors")) {
    const StepObject object(file, fmt::format("tensor {}", problem.tensors.size()), entry);
    tensors.add(object);
    problem.tensors.push_back(to_tensor(object));
  }
  IdMap ops("op");
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
    // Before its own id is known, so that only earlier ops can be named: no cycles.
    if (object.has("after")) op.after = ops.find_all(object, "after");
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
                            {"arena_bytes", plan.arena_bytes},
                            {"arena_bound_bytes", plan.arena_bound_bytes},
                            {"order", plan.order},
                            {"offset_bytes", plan.offset_bytes},
                            {"frees_after", plan.frees_after}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::vector<Buffer> parse_buffers(std::string_view text, const std::string& file) { return CsvReader(file).read(text); }

std::vector<Buffer> read_buffers(const std::string& path) { return parse_buffers(read_file("buffers", path), path); }

std::string format_buffers(const std::vector<Buffer>& buffers, const std::vector<std::int64_t>& offset_bytes) {
  bool has_offset = !offset_bytes.empty();
  bool has_alignment = false;
  for (const Buffer& buffer : buffers) {
    has_offset = has_offset || buffer.fixed_offset_bytes;
    has_alignment = has_alignment || buffer.alignment_bytes != 1;
  }
  std::string text =
      fmt::format("id,lower,upper,size{}{}\n", has_offset ? ",offset" : "", has_alignment ? ",alignment" : "");
  for (std::size_t index = 0; index < buffers.size(); ++index) {
    const Buffer& buffer = buffers[index];
    text += fmt::format("{},{},{},{}", buffer.id, buffer.lower, buffer.upper, buffer.size_bytes);
    if (!offset_bytes.empty()) {
      text += fmt::format(",{}", offset_bytes[index]);
    } else if (has_offset) {
      text += buffer.fixed_offset_bytes ? fmt::format(",{}", *buffer.fixed_offset_bytes) : ",";
    }
    if (has_alignment) text += fmt::format(",{}", buffer.alignment_bytes);
    text += '\n';
  }
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
