// SPDX-License-Identifier: Apache-2.0
#include "plugin/registry.h"

#include <algorithm>
#include <list>
#include <mutex>

#include <nlohmann/json.hpp>

#include "plugin/region.h"

namespace stowage {
namespace {

/// Regions in the order in which they were made. What a region that is gone had to tell is kept, so that a report at
/// the end of training has it; of those, the oldest goes first.
struct Registry {
  struct Entry {
    const Region* region = nullptr;  ///< null once it is gone
    std::string name;
    nlohmann::json status;
    std::string text;
  };
  static constexpr std::size_t kMaxGone = 64;

  std::mutex mutex;
  std::list<Entry> entries;
};

Registry& registry() {
  static auto* instance = new Registry();
  return *instance;
}

}  // namespace

void enter_region(const Region& region) {
  std::lock_guard lock(registry().mutex);
  registry().entries.push_back({&region, region.name(), {}, {}});
}

void leave_region(const Region& region) {
  std::lock_guard lock(registry().mutex);
  auto& entries = registry().entries;
  const auto own = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.region == &region; });
  own->status = region.status();
  own->text = region.text();
  own->region = nullptr;
  const auto is_gone = [](const auto& entry) { return entry.region == nullptr; };
  if (std::count_if(entries.begin(), entries.end(), is_gone) > static_cast<std::ptrdiff_t>(Registry::kMaxGone)) {
    entries.erase(std::find_if(entries.begin(), entries.end(), is_gone));
  }
}

nlohmann::json all_regions_status() {
  std::lock_guard lock(registry().mutex);
  nlohmann::json all = nlohmann::json::array();
  for (const auto& entry : registry().entries) {
    all.push_back(entry.region != nullptr ? entry.region->status() : entry.status);
    all.back()["alive"] = entry.region != nullptr;
  }
  return all;
}

std::optional<std::string> region_text(const std::string& name) {
  std::lock_guard lock(registry().mutex);
  const auto& entries = registry().entries;
  const auto newest = std::find_if(entries.rbegin(), entries.rend(),
                                   [&](const auto& entry) { return name.empty() || entry.name == name; });
  if (newest == entries.rend()) return std::nullopt;
  return newest->region != nullptr ? newest->region->text() : newest->text;
}

}  // namespace stowage
