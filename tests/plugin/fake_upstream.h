// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plugin/upstream.h"

namespace stowage {

/// An upstream that knows what it gave out, refuses on demand, and lets others in between.
///
/// It is a device, too: tests submit work that touches memory, and finish it when they like. Work on memory that other
/// work may still touch, though it neither waits for it nor knows it finished, is a failure; so is giving back a block
/// that a stream may still touch of which nobody told. Thread safe.
class FakeUpstream : public Upstream {
 public:
  ~FakeUpstream() override { EXPECT_TRUE(live_.empty()) << live_.size() << " blocks were never freed"; }

  // --- what the allocator calls -------------------------------------------------------------------------------------

  void* allocate(std::size_t size_bytes, Stream stream) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    std::lock_guard lock(mutex_);
    if (refuse) throw std::bad_alloc();
    ++allocations;
    return make(size_bytes, {.stream = stream});
  }
  std::vector<std::int64_t> spare_blocks(Stream) override {
    return spare > 0 ? std::vector<std::int64_t>{spare} : std::vector<std::int64_t>{};
  }
  void* allocate_apart(std::size_t size_bytes, Stream stream) override {
    if (refuse_apart) throw std::bad_alloc();
    void* pointer = allocate(size_bytes, stream);
    std::lock_guard lock(mutex_);
    apart_bytes.push_back(static_cast<std::int64_t>(size_bytes));
    return pointer;
  }
  void free(void* pointer) noexcept override { remove(pointer, /*direct=*/false); }
  void* allocate_direct(std::size_t size_bytes) override {
    std::lock_guard lock(mutex_);
    ++direct_requests;
    return refuse_direct ? nullptr : make(size_bytes, {.direct = true});
  }
  void free_direct(void* pointer) noexcept override { remove(pointer, /*direct=*/true); }

  Stream current_stream() override { return t_stream; }
  bool may_plan() override { return plannable; }
  bool may_serve() override { return servable; }
  bool runs_backward() override { return t_runs_backward; }
  void release_cache() override { ++cache_releases; }

  void wait(Stream waiting, Stream stream) override {
    std::lock_guard lock(mutex_);
    if (refuse_waits) throw std::runtime_error("cannot wait");
    follow(waiting, stream);
  }
  void record_stream(void* block, Stream stream) override {
    std::lock_guard lock(mutex_);
    const auto found = live_.find(static_cast<char*>(block));
    ASSERT_NE(found, live_.end()) << "told of a stream on what is no block";
    found->second.told.insert(stream);
  }
  std::unique_ptr<Event> record_event(Stream stream) noexcept override;
  void fill(void* pointer, int byte, std::size_t size_bytes, Stream stream) noexcept override {
    std::memset(pointer, byte, size_bytes);
    touch(pointer, size_bytes, stream);
  }

  // --- what tests call ----------------------------------------------------------------------------------------------

  bool owns(void* pointer) {
    std::lock_guard lock(mutex_);
    return live_.count(static_cast<char*>(pointer)) == 1;
  }
  std::size_t live_blocks() {
    std::lock_guard lock(mutex_);
    return live_.size();
  }

  /// Submits work that writes there.
  void touch(void* pointer, std::size_t size_bytes, Stream stream) {
    std::lock_guard lock(mutex_);
    auto* begin = static_cast<char*>(pointer);
    check_order(begin, begin + size_bytes, stream, "is touched");
    Timeline& timeline = timelines_[stream];
    timeline.submitted.push_back(timeline.follows);
    touches_.push_back({begin, begin + size_bytes, stream, timeline.submitted.size()});
  }
  /// As a program does that hands a tensor from `stream` to `waiting`.
  void synchronize(Stream waiting, Stream stream) {
    std::lock_guard lock(mutex_);
    follow(waiting, stream);
  }
  /// Finishes the first `count` pieces of work of the stream, and what they follow.
  void finish(Stream stream, std::size_t count = SIZE_MAX) {
    std::lock_guard lock(mutex_);
    finish_locked(stream, std::min(count, timelines_[stream].submitted.size()));
    std::erase_if(touches_, [&](const Touch& touch) { return touch.position <= timelines_[touch.stream].finished; });
  }
  std::size_t submitted(Stream stream) {
    std::lock_guard lock(mutex_);
    return timelines_[stream].submitted.size();
  }

  /// Of which streams it was told that they use the block.
  std::set<Stream> told(void* block) {
    std::lock_guard lock(mutex_);
    return live_.at(static_cast<char*>(block)).told;
  }

  /// The calling thread's stream.
  static inline thread_local Stream t_stream = 0;
  /// Whether the calling thread works for a backward.
  static inline thread_local bool t_runs_backward = false;

  bool refuse = false;
  bool plannable = true;
  bool servable = true;
  bool refuse_direct = false;
  bool refuse_waits = false;
  std::optional<Stream> untold;         ///< nobody can tell what that stream has got
  std::atomic<bool> capturing = false;  ///< nobody can tell what streams have got
  std::function<void()> meanwhile;      ///< done once, while the next allocation is under way
  std::function<void()> while_asking;   ///< done once, while the next event is asked
  bool refuse_apart = false;
  std::atomic<std::int64_t> spare = 0;    ///< unused, and not to be given back
  std::vector<std::int64_t> apart_bytes;  ///< of each allocation apart
  int allocations = 0;
  int direct_requests = 0;
  std::atomic<int> cache_releases = 0;

 private:
  /// By stream: how much of its work comes before.
  using Clock = std::map<Stream, std::size_t>;
  struct Timeline {
    Clock follows;  ///< what its next work follows
    std::vector<Clock> submitted;
    std::size_t finished = 0;
  };
  struct Touch {
    char* begin;
    char* end;
    Stream stream;
    std::size_t position;
  };
  struct Block {
    Stream stream = 0;
    bool direct = false;
    std::size_t size_bytes = 0;
    std::set<Stream> told = {};
  };
  class FakeEvent;

  void* make(std::size_t size_bytes, Block block) {
    void* pointer = std::aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    block.size_bytes = size_bytes;
    live_[static_cast<char*>(pointer)] = block;
    return pointer;
  }

  void remove(void* pointer, bool direct) {
    std::lock_guard lock(mutex_);
    auto* begin = static_cast<char*>(pointer);
    const auto found = live_.find(begin);
    ASSERT_NE(found, live_.end()) << "freed twice, or never allocated";
    const Block& block = found->second;
    EXPECT_EQ(block.direct, direct);
    // The driver waits for all work; the native allocator for its own stream's, and for that of those it was told of.
    if (!direct) check_order(begin, begin + block.size_bytes, block.stream, "is given back", block.told);
    std::erase_if(touches_,
                  [&](const Touch& touch) { return touch.begin >= begin && touch.end <= begin + block.size_bytes; });
    live_.erase(found);
    std::free(pointer);
  }

  void follow(Stream waiting, Stream stream) {
    const Timeline& other = timelines_[stream];
    Clock& clock = timelines_[waiting].follows;
    if (&clock == &other.follows) return;
    for (const auto& [each, position] : other.follows) clock[each] = std::max(clock[each], position);
    clock[stream] = std::max(clock[stream], other.submitted.size());
  }

  void finish_locked(Stream stream, std::size_t position) {
    Timeline& timeline = timelines_[stream];
    while (timeline.finished < position) {
      const Clock follows = timeline.submitted[timeline.finished++];
      for (const auto& [each, before] : follows) finish_locked(each, before);
    }
  }

  void check_order(char* begin, char* end, Stream stream, const char* what, const std::set<Stream>& told = {}) {
    const Timeline& timeline = timelines_[stream];
    for (const Touch& touch : touches_) {
      if (touch.end <= begin || touch.begin >= end || touch.stream == stream || told.count(touch.stream) != 0) continue;
      const auto follows = timeline.follows.find(touch.stream);
      const bool is_after = follows != timeline.follows.end() && follows->second >= touch.position;
      EXPECT_TRUE(is_after || timelines_[touch.stream].finished >= touch.position)
          << "memory " << what << " on stream " << stream << " while work " << touch.position << " of stream "
          << touch.stream << " may touch it";
    }
  }

  std::mutex mutex_;
  std::map<char*, Block> live_;
  std::map<Stream, Timeline> timelines_;
  std::vector<Touch> touches_;  ///< of work that is not finished
};

class FakeUpstream::FakeEvent final : public Event {
 public:
  FakeEvent(FakeUpstream& upstream, Stream stream)
      : upstream_(upstream), stream_(stream), position_(upstream.timelines_[stream].submitted.size()) {}

  bool is_done() noexcept override {
    if (upstream_.while_asking) std::exchange(upstream_.while_asking, nullptr)();
    if (upstream_.capturing) return false;
    std::lock_guard lock(upstream_.mutex_);
    return upstream_.timelines_[stream_].finished >= position_;
  }

 private:
  FakeUpstream& upstream_;
  const Stream stream_;
  const std::size_t position_;
};

inline std::unique_ptr<Event> FakeUpstream::record_event(Stream stream) noexcept {
  std::lock_guard lock(mutex_);
  if (capturing || untold == stream) return nullptr;
  return std::make_unique<FakeEvent>(*this, stream);
}

}  // namespace stowage
