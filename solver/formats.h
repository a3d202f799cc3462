// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "solver/layout.h"
#include "solver/plan.h"
#include "solver/problem.h"

namespace stowage::solver {

// Readers throw `std::invalid_argument` with one line that names the file and where in it the fault is; writers throw
// `std::runtime_error`. `file` is only for messages.

/// A step in the format `stowage-step/1`, a JSON object: `tensors` with `id`, `size_bytes`, `persistent`, `output` and,
/// where wanted, `name`, `alignment_bytes`, `external`; `ops` in program order with `id`, `name`, `kind`, `reads`,
/// `writes`, `allocates` and, where wanted, `duration_ns`, `after` (ids of ops), `events`, a list of `{"allocate":
/// tensor}` and `{"free": tensor}` for ops that free workspace, and `reuses`, a list of `{"output": tensor, "input":
/// tensor}`. Without `events`, `allocates` is what happens, in order. Without `reuses`, the only result of an op whose
/// kind is pointwise may take any input of its size.
Problem parse_step(std::string_view text, const std::string& file);
/// Of a plain file or one compressed with gzip.
Problem read_step(const std::string& path);
/// Ids are indices. `read_step` gives back the same problem.
std::string format_step(const Problem& problem);

/// The plan of `problem` as JSON (format `stowage-plan/1`): the fields of `Plan`.
std::string format_plan(const Problem& problem, const Plan& plan);

/// Buffers as CSV: a header with `id`, `lower`, `upper`, `size` and perhaps `offset` and `alignment`, in any order,
/// then a row each. `upper` is exclusive; an `offset` that is there is fixed. Ends of line may be CRLF.
std::vector<Buffer> parse_buffers(std::string_view text, const std::string& file);
std::vector<Buffer> read_buffers(const std::string& path);
/// With the column `offset` if `offset_bytes` (by buffer) is not empty or some buffer is fixed.
std::string format_buffers(const std::vector<Buffer>& buffers, const std::vector<std::int64_t>& offset_bytes = {});

/// The text of a plain file or one compressed with gzip. `what` says in messages what was looked for: "step".
std::string read_file(std::string_view what, const std::string& path);

/// Writes a whole file, compressed if its name ends in ".gz". Replaces a file only with `force`.
void write_file(const std::string& path, std::string_view text, bool force);

}  // namespace stowage::solver
