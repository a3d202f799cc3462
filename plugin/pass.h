// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plugin/torch_headers.h"

namespace stowage {

/// Registers the torch.jit pass that wraps graphs in regions, installs the CPU allocator and opens the store (empty:
/// the option's value). Graphs that TorchScript has already optimised stay as they are. Again: changes the store.
void enable(const std::string& store);

/// Takes the pass and the allocator away again. Regions go on as plain graphs; the arena is given back.
void disable();

/// Sets an option and puts it in force at once. Throws `std::invalid_argument` as `set_option` does.
void configure(const std::string& name, const std::string& value);

/// What stowage has seen and done, as JSON.
std::string status();

/// Program and plan of the region of that name, printed; "" means the newest. Throws `std::invalid_argument`, naming
/// the regions there are.
std::string planned_graph(const std::string& name);

/// `stowage::name[name]()`, which does nothing: whoever builds a graph puts it in to name the graph's region.
torch::jit::RegisterOperators register_name_operator();

}  // namespace stowage
