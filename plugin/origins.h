// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plugin/torch_headers.h"

namespace stowage {

/// Gives the ops of a captured step the origins that its mark says, `stowage::name[origins=...]`: UTF-8 JSON, in which
/// `ops` has the number in `origins` of each op, by the name of its first output, and an origin is [scope, file, line].
/// Kept as source ranges, which no printed graph and no digest shows but every copy of a node keeps, and errors quote:
/// the text is the scope, at that line of that file. An op that is not named has the origin of what takes its output.
void take_origins(torch::jit::Graph& graph, const torch::jit::Node& mark);

/// The scope that `take_origins` gave the op, else the one that TorchScript knows; may be empty.
std::string scope_of(const torch::jit::Node& op);

/// As "train.py:12", else empty.
std::string source_of(const torch::jit::Node& op);

}  // namespace stowage
