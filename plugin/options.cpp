// SPDX-License-Identifier: Apache-2.0
#include "plugin/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plugin/budget.h"
#include "plugin/note.h"

namespace stowage {
namespace {

using Member = std::variant<std::string Options::*, bool Options::*, std::int64_t Options::*>;

struct OptionRow {
  const char* name;
  const char* meaning;
  Member member;
  std::string (*fault)(const std::string& value) = nullptr;  ///< what it takes, where it does not take this text
};

const std::vector<OptionRow>& rows() {
  static const std::vector<OptionRow> table = {
      {"store", "file that profiles and plans are kept in; empty: in memory only", &Options::store},
      {"plan", "whether regions are profiled and planned; off: they run as they are", &Options::plan},
      {"reuse", "whether results of pointwise ops may take the memory of inputs that die there", &Options::reuse},
      {"reuse_ops",
       "more ops of which that is true, as 'mine::scale,mine::gate': each element of the result depends on "
       "the same element of the inputs alone, read once, before it is written",
       &Options::reuse_ops},
      {"poison", "fill freed slots with NaN bytes, to catch a read after free", &Options::poison},
      {"meter", "count every live byte that any thread allocates", &Options::meter},
      {"verify", "run every planned step unplanned first and compare the results of each op; slow", &Options::verify},
      {"min_ops", "graphs with fewer ops are left alone", &Options::min_ops},
      {"max_profile_runs", "give up planning when no two runs in a row were alike by then", &Options::max_profile_runs},
      {"max_plans", "plans kept for each graph; the least recently used goes first", &Options::max_plans},
      {"max_step_plans", "plans kept for the steps of a device; the least recently used goes first",
       &Options::max_step_plans},
      {"scripted_steps", "whether steps begin by themselves where scripted modules are trained",
       &Options::scripted_steps},
      {"share_plans", "whether plans of steps are made when the caller says so, as ranks of a group do",
       &Options::share_plans},
      {"deadline_ms", "time the solver may take for one plan", &Options::deadline_ms},
      {"budget",
       "memory that a captured step may take, as '6GiB' or as a share of its unplanned peak, '0.5'; empty: any",
       &Options::budget, budget_fault},
      {"slowdown", "how many times as long a captured step may take to need less memory, as '1.05'; empty: no longer",
       &Options::slowdown, slowdown_fault},
      {"over_budget", "what a captured step does that cannot be kept within its budget: 'continue' or 'stop'",
       &Options::over_budget, over_budget_fault},
      {"offload", "whether a captured step may copy tensors to host memory and back to stay within its budget",
       &Options::offload},
      {"offload_bandwidth",
       "bytes that such copies carry in a second each way; empty: as measured on CUDA, and no copies on the CPU",
       &Options::offload_bandwidth, offload_bandwidth_fault},
  };
  return table;
}

bool parse_bool(const std::string& value, bool& out) {
  for (const char* word : {"1", "true", "on", "yes"}) {
    if (value == word) return out = true;
  }
  for (const char* word : {"0", "false", "off", "no"}) {
    if (value == word) return out = false, true;
  }
  return false;
}

void assign(Options& options, const OptionRow& row, const std::string& value) {
  if (const auto* text = std::get_if<std::string Options::*>(&row.member)) {
    const std::string fault = row.fault == nullptr ? "" : row.fault(value);
    if (!fault.empty())
      throw std::invalid_argument(fmt::format("cannot set option '{}' to '{}': {}", row.name, value, fault));
    options.*(*text) = value;
  } else if (const auto* flag = std::get_if<bool Options::*>(&row.member)) {
    if (!parse_bool(value, options.*(*flag))) {
      throw std::invalid_argument(
          fmt::format("cannot set option '{}' to '{}': it is a switch; use '1' or '0'", row.name, value));
    }
  } else {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 1) {
      throw std::invalid_argument(
          fmt::format("cannot set option '{}' to '{}': it takes a whole number from 1", row.name, value));
    }
    options.*std::get<std::int64_t Options::*>(row.member) = number;
  }
}

Options from_environment() {
  Options options;
  for (const OptionRow& row : rows()) {
    std::string variable = fmt::format("STOWAGE_{}", row.name);
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    try {
      assign(options, row, value);
    } catch (const std::invalid_argument& error) {
      note(fmt::format("ignoring {}: {}", variable, error.what()));
    }
  }
  return options;
}

Options& mutable_options() {
  static Options options = from_environment();
  return options;
}

}  // namespace

const Options& options() { return mutable_options(); }

void set_option(const std::string& name, const std::string& value) {
  const auto row = std::find_if(rows().begin(), rows().end(), [&](const OptionRow& r) { return name == r.name; });
  if (row == rows().end()) {
    std::vector<std::string> known;
    for (const OptionRow& each : rows()) known.emplace_back(each.name);
    throw std::invalid_argument(
        fmt::format("cannot set option '{}': there is no such option; use one of {}", name, fmt::join(known, ", ")));
  }
  assign(mutable_options(), *row, value);
}

std::map<std::string, std::string> option_values() {
  std::map<std::string, std::string> values;
  for (const OptionRow& row : rows()) {
    values[row.name] = std::visit(
        [](auto member) -> std::string {
          const auto& value = options().*member;
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
            return value;
          } else {
            return fmt::format("{}", static_cast<std::int64_t>(value));
          }
        },
        row.member);
  }
  return values;
}

}  // namespace stowage
