// SPDX-License-Identifier: Apache-2.0
// Buffers are refused in one line, or they survive being written and read, and can be laid out.
#include "solver/formats.h"
#include "solver/layout.h"
#include "tests/fuzz/promise.h"

namespace {

using namespace stowage::solver;

constexpr std::size_t kMostBuffers = 20;

std::int64_t end_bytes(const Buffer& buffer, std::int64_t offset_bytes) { return offset_bytes + buffer.size_bytes; }

void check_layout(const std::vector<Buffer>& buffers, const Layout& layout) {
  promise(layout.offset_bytes.size() == buffers.size(), "every buffer has an offset");
  std::int64_t height_bytes = 0;
  for (std::size_t index = 0; index < buffers.size(); ++index) {
    const Buffer& buffer = buffers[index];
    const std::int64_t offset_bytes = layout.offset_bytes[index];
    promise(offset_bytes >= 0, "an offset is not negative");
    promise(!buffer.fixed_offset_bytes || offset_bytes == *buffer.fixed_offset_bytes, "a fixed buffer stays");
    promise(buffer.fixed_offset_bytes || offset_bytes % buffer.alignment_bytes == 0, "an offset is aligned");
    if (buffer.size_bytes == 0) continue;  // in nobody's way
    height_bytes = std::max(height_bytes, end_bytes(buffer, offset_bytes));
    for (std::size_t other = 0; other < index; ++other) {
      const bool meet = buffer.lower < buffers[other].upper && buffers[other].lower < buffer.upper;
      const bool overlap = offset_bytes < end_bytes(buffers[other], layout.offset_bytes[other]) &&
                           layout.offset_bytes[other] < end_bytes(buffer, offset_bytes);
      if (buffers[other].size_bytes == 0) continue;
      promise(!meet || !overlap, "buffers alive together do not overlap");
    }
  }
  promise(layout.height_bytes == height_bytes, "the height is that of the highest buffer");
  promise(layout.bound_bytes <= height_bytes, "the bound is not above the height");
}

void try_buffers(std::string_view text) {
  const std::vector<Buffer> buffers = parse_buffers(text, "buffers.csv");
  promise(parse_buffers(format_buffers(buffers), "buffers.csv") == buffers, "buffers survive being written and read");
  if (buffers.size() > kMostBuffers) return;
  LayoutLimits limits;
  limits.node_limit = 300;  // and no deadline, which a slow machine could meet
  const Layout layout = lay_out(buffers, limits);
  if (layout.status == Status::kInfeasible || layout.status == Status::kTimedOut) {
    promise(layout.offset_bytes.empty(), "what is infeasible has no offsets");
  } else {
    check_layout(buffers, layout);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    try_buffers({reinterpret_cast<const char*>(data), size});
  } catch (const std::invalid_argument& error) {
    promise_one_line(error);
  }
  return 0;
}
