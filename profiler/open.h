// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "profiler/sqlite.h"
#include "profiler/store.h"

namespace stowage::profiler {

/// Opens a store's file, making or migrating it where `mode` allows. Writes what the user should be told into `note`.
/// Throws `StoreError` for a file that is no store of this schema.
Database open_store(const std::string& path, Store::Mode mode, std::string& note);

}  // namespace stowage::profiler
