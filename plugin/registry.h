// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stowage {

class Region;

/// From here on the functions below tell of it. Called by its constructor.
void enter_region(const Region& region);
/// Keeps what it has to tell: it is going. Called by its destructor.
void leave_region(const Region& region);

/// The status of every region, oldest first; of one that is gone, the last.
nlohmann::json all_regions_status();

/// The text of the newest region of that name ("": any), or nothing. One that is gone keeps its last text.
std::optional<std::string> region_text(const std::string& name);

}  // namespace stowage
