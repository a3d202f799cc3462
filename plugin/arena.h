// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plugin/step_record.h"
#include "plugin/upstream.h"

namespace stowage {

/// An address range in the arena. `size_bytes == 0` says that the tensor outlives the region: it goes upstream.
struct Slot {
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;
  bool reuses = false;  ///< its op may write it over an input that dies there; see `PlannedSession::permit_reuse`

  bool operator==(const Slot&) const = default;
};

/// One block of memory, or several, and which ranges of them are live. Not thread safe. A slot's offset counts from the
/// first block's begin, and on from its end in the next: none lies in two.
///
/// A range is live from `try_place` until it is freed and, where another stream than the arena's may still use it,
/// until the work that this stream had then is done: it is quarantined meanwhile.
class Arena {
 public:
  /// Two storages hold a range while an op writes its result over an input.
  struct Span {
    std::int64_t begin_bytes = 0;
    std::int64_t end_bytes = 0;
    std::int32_t holders = 1;
    std::uint64_t ticket = 0;  ///< of its quarantine; 0: none
    Stream stream = 0;         ///< that it was placed for
    StepTag tag;               ///< of the step that it was placed in

    std::int64_t size_bytes() const { return end_bytes - begin_bytes; }
  };
  /// What is known of the work that a quarantined range waits for. No events: not recorded yet.
  struct Quarantine {
    std::uint64_t ticket = 0;
    void* pointer = nullptr;
    std::vector<Stream> streams;
    std::vector<std::shared_ptr<Event>> events;
  };

  struct Block {
    char* base = nullptr;
    std::int64_t begin_bytes = 0;  ///< the offset that `base` has
    std::int64_t end_bytes = 0;

    bool contains(const void* pointer) const {
      const auto* byte = static_cast<const char*>(pointer);
      return byte >= base && byte < base + (end_bytes - begin_bytes);
    }
  };

  Arena(std::vector<Block> blocks, Stream stream) : blocks_(std::move(blocks)), stream_(stream) {}

  const std::vector<Block>& blocks() const { return blocks_; }
  /// Where the second block begins, and those after it.
  std::vector<std::int64_t> cuts() const;
  char* address_of(std::int64_t offset_bytes) const;
  /// The stream whose work uses the arena now.
  Stream stream() const { return stream_; }
  std::int64_t size_bytes() const { return blocks_.back().end_bytes; }
  bool contains(const void* pointer) const { return block_of(pointer) != nullptr; }
  /// The block that the byte at `pointer` is in, or null.
  const Block* block_of(const void* pointer) const;
  bool has_live() const { return !live_.empty(); }
  bool is_live(const void* pointer) { return find(pointer) != live_.end(); }
  const std::vector<Quarantine>& quarantines() const { return quarantines_; }

  /// Sets the stream whose work uses the arena now. Returns the one before.
  Stream take_for(Stream stream);
  bool try_place(Slot slot, StepTag tag = {});
  /// Makes the live range that is exactly this slot, with one holder and on this stream alone, held by two.
  bool try_share(Slot slot);
  /// `stream` uses the live range at `pointer` too.
  void use_on(const void* pointer, Stream stream);

  /// A holder of the range at `pointer` lets go. If it was the last: whether the range may be ended; if not, it is
  /// quarantined under `ticket`. Null if other holders are left, or nothing is live there.
  struct LetGo {
    bool may_end = false;
    Span span;
  };
  std::optional<LetGo> let_go(const void* pointer, std::uint64_t ticket);
  /// Ends the range at `pointer`.
  void end(const void* pointer);
  /// What the range waits for, if it is still quarantined under `ticket`.
  void set_events(std::uint64_t ticket, std::vector<std::shared_ptr<Event>> events);
  /// Ends the range quarantined under `ticket`; null if there is none any more.
  std::optional<Span> end_quarantine(std::uint64_t ticket);

  bool taken = false;    ///< by a run
  bool retired = false;  ///< to be given back when nothing is live any more

 private:
  /// A stream that uses a live range of another.
  struct Guest {
    std::int64_t begin_bytes;
    Stream stream;

    bool operator==(const Guest&) const = default;
  };

  std::vector<Span>::iterator find(const void* pointer);
  bool has_guest(const Span& span) const;
  /// The block in which the offset is.
  const Block& block_at(std::int64_t offset_bytes) const;

  std::vector<Block> blocks_;
  Stream stream_;
  std::vector<Span> live_;  ///< by address
  std::vector<Guest> guests_;
  std::vector<Quarantine> quarantines_;
};

}  // namespace stowage
