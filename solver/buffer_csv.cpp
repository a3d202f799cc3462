// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include <fmt/format.h>

#include "solver/formats.h"
#include "solver/text.h"

namespace stowage::solver {
namespace {

constexpr std::int64_t kLimitBytes = std::int64_t{1} << 62;

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
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (text.find('\0') != std::string_view::npos) refuse(fmt::format("it is not text; {}", kTakes));
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
    if (buffers.empty()) refuse(fmt::format("no buffers; {}", kTakes));
    return buffers;
  }

 private:
  static constexpr std::string_view kTakes = "it takes a header id,lower,upper,size[,offset][,alignment] and rows";
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
      if (column == kColumnCount) {
        refuse(fmt::format("row 1: unknown column {}; the header is id,lower,upper,size[,offset][,alignment]",
                           quote(names[field])));
      }
      if (field_of_[column] != kAbsent) refuse(fmt::format("row 1: column '{}' is there twice", names[field]));
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
    check_id(buffer.id);
    check_place(buffer);
    return buffer;
  }

  void check_id(const std::string& id) {
    const auto [taken, is_new] = row_of_id_.emplace(id, row_);
    if (!is_new) refuse(kId, fmt::format("{} is taken by row {}", quote(id), taken->second));
    const auto is_control = [](unsigned char letter) { return letter < ' '; };
    if (std::any_of(id.begin(), id.end(), is_control)) {
      refuse(kId, fmt::format("{} holds a control character", quote(id)));
    }
  }

  void check_place(const Buffer& buffer) {
    if (buffer.alignment_bytes == 0) refuse(kAlignment, "0 is no alignment; use 1 for none");
    if (buffer.fixed_offset_bytes && *buffer.fixed_offset_bytes % buffer.alignment_bytes != 0) {
      refuse(kOffset, fmt::format("{} is not a multiple of its alignment {}", *buffer.fixed_offset_bytes,
                                  buffer.alignment_bytes));
    }
    // With padding in front of each, so that any layout can be counted in 63 bits.
    const std::int64_t padded_bytes = buffer.size_bytes + (buffer.alignment_bytes - 1);
    if (padded_bytes >= kLimitBytes - sum_bytes_) {
      refuse(kSize, "the sizes up to this row, with padding for their alignment, sum to 2^62 B or more");
    }
    sum_bytes_ += padded_bytes;
  }

  std::int64_t to_number(Column column, std::string_view text) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_integer = error == std::errc() && end == text.data() + text.size();
    if (!is_integer || value < 0 || value >= kLimitBytes) {
      refuse(column, fmt::format("{} is no integer from 0 to 2^62 - 1", quote(text)));
    }
    return value;
  }

  const std::string& file_;
  std::int64_t row_ = 0;        ///< from 1, the header's
  std::int64_t sum_bytes_ = 0;  ///< of the sizes so far, each with its padding
  std::size_t field_count_ = 0;
  std::array<std::size_t, kColumnCount> field_of_;  ///< by column: where in a row it stands
  std::unordered_map<std::string, std::int64_t> row_of_id_;
};

}  // namespace

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

}  // namespace stowage::solver
