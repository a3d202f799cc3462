// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/upstream.h"

namespace stowage {

/// An address range in the arena. `size_bytes == 0` says that the tensor outlives the region: it goes upstream.
struct Slot {
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;
  bool reuses = false;  ///< its op may write it over an input that dies there; see `PlannedSession::permit_reuse`

  bool operator==(const Slot&) const = default;
};

/// A block of memory, and which ranges of it are live. Not thread safe.
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

    std::int64_t size_bytes() const { return end_bytes - begin_bytes; }
  };
  /// What is known of the work that a quarantined range waits for. No events: not recorded yet.
  struct Quarantine {
    std::uint64_t ticket = 0;
    void* pointer = nullptr;
    std::vector<Stream> streams;
    std::vector<std::shared_ptr<Event>> events;
  };

  Arena(char* base, std::int64_t size_bytes, Stream stream) : base_(base), size_bytes_(size_bytes), stream_(stream) {}

  char* base() const { return base_; }
  /// The stream whose work uses the arena now.
  Stream stream() const { return stream_; }
  std::int64_t size_bytes() const { return size_bytes_; }
  bool contains(const void* pointer) const;
  bool has_live() const { return !live_.empty(); }
  bool is_live(const void* pointer) { return contains(pointer) && find(pointer) != live_.end(); }
  const std::vector<Quarantine>& quarantines() const { return quarantines_; }

  /// Sets the stream whose work uses the arena now. Returns the one before.
  Stream take_for(Stream stream);
  bool try_place(Slot slot);
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

  char* base_;
  std::int64_t size_bytes_;
  Stream stream_;
  std::vector<Span> live_;  ///< by address
  std::vector<Guest> guests_;
  std::vector<Quarantine> quarantines_;
};

}  // namespace stowage
