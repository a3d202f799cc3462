// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "plugin/planned_allocator.h"
#include "tests/plugin/fake_upstream.h"

namespace stowage {
namespace {

constexpr std::array<Stream, 4> kStreams{0, 16, 32, 48};
constexpr int kOps = 12;

/// A program on several streams that does everything right, whatever the allocator does: it tells the allocator of each
/// stream that uses a tensor, and makes a tensor's uses follow one another. The fake upstream finds the allocator out
/// if it gives memory to work that does not follow the work of its last owner.
class Program {
 public:
  explicit Program(unsigned seed) : random_(seed) {
    for (int op = 0; op < kOps; ++op) {
      for (int index = 1 + below(3); index > 0; --index) {
        if (!table_.slots.empty() && below(2) == 0) {
          table_.slots.push_back(table_.slots[static_cast<std::size_t>(below(static_cast<int>(table_.slots.size())))]);
          table_.slots.back().reuses = true;
        } else {
          table_.slots.push_back({64 * below(14), 64 * below(4)});
        }
      }
      table_.first_slot.push_back(static_cast<std::int32_t>(table_.slots.size()));
    }
    allocator_.set_poison(below(2) == 0);
    table_.cuts = any_cuts();
  }
  ~Program() {
    end_run();
    upstream_.capturing = false;
    while (!tensors_.empty()) free_tensor(0);
    for (int round = 0; round < 2; ++round) {  // the end of a quarantine may be work that another one waits for
      for (const Stream stream : kStreams) upstream_.finish(stream);
      allocator_.release_arena();
    }
    EXPECT_EQ(upstream_.live_blocks(), 0U);
    FakeUpstream::t_stream = 0;
  }

  void step() {
    switch (below(14)) {
      case 0:
        return begin_run();
      case 1:
        return end_run();
      case 2:
        return upstream_.finish(any_stream(), upstream_.submitted(any_stream()) / 2);
      case 3:
        return upstream_.finish(any_stream());
      case 4:
        upstream_.capturing = below(3) == 0;
        return;
      case 5:
        if (below(4) == 0) allocator_.release_arena();
        return;
      case 6:
        if (below(4) == 0) allocator_.release_idle_arena();
        return;
      case 7:
      case 8:
        return use_tensor();
      case 9:
      case 10:
      case 11:
        if (!tensors_.empty()) free_tensor(static_cast<std::size_t>(below(static_cast<int>(tensors_.size()))));
        return;
      default:
        return make_tensors();
    }
  }

  std::int64_t hits() const { return hits_; }
  std::int64_t reused() const { return reused_; }
  /// How many arenas were two blocks.
  std::int64_t cuts() const {
    return std::count_if(upstream_.apart_bytes.begin(), upstream_.apart_bytes.end(),
                         [this](std::int64_t bytes) { return bytes < table_.arena_bytes; });
  }

 private:
  struct Tensor {
    char* pointer;
    std::size_t size_bytes;
    Stream stream;
    std::set<Stream> users;
    bool is_dead = false;  ///< its memory holds another's result by now: it can only be freed
  };

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  std::vector<std::int64_t> any_cuts() {
    const std::int64_t cut_bytes = 64 * below(14);
    return cut_bytes == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{cut_bytes};
  }
  Stream any_stream() { return kStreams[static_cast<std::size_t>(below(kStreams.size()))]; }

  void begin_run() {
    if (session_) return;
    FakeUpstream::t_stream = any_stream();
    upstream_.spare = 64 * below(20);
    allocator_.reserve_arena({.slots = {},
                              .first_slot = {},
                              .arena_bytes = table_.arena_bytes + (below(8) == 0 ? 64 * below(9) : 0),
                              .cuts = below(8) == 0 ? any_cuts() : table_.cuts});
    session_.emplace(allocator_, table_);
    run_stream_ = FakeUpstream::t_stream;
  }
  void end_run() {
    if (!session_) return;
    hits_ += session_->counters().hits.allocations;
    reused_ += session_->counters().reused.allocations;
    session_.reset();
  }

  void make_tensors() {
    if (!session_) begin_run();
    const std::int32_t op = below(kOps);
    session_->enter_op(op);
    Tensor* input = find_input(op);
    if (input != nullptr) session_->permit_reuse(input->pointer, static_cast<std::int64_t>(input->size_bytes));
    std::vector<Tensor> made;
    for (int index = 1 + below(3); index > 0; --index) {
      const Stream stream = below(6) == 0 ? any_stream() : run_stream_;
      const std::size_t size_bytes = input != nullptr ? input->size_bytes : 1 + static_cast<std::size_t>(below(64 * 3));
      Tensor tensor{static_cast<char*>(allocator_.allocate(size_bytes, stream)), size_bytes, stream, {stream}};
      expect_apart(tensor, made, input);
      if (input != nullptr && tensor.pointer == input->pointer) {
        EXPECT_EQ(input->users, std::set<Stream>{stream}) << "the other stream still reads the input";
        input->is_dead = true;
      }
      upstream_.touch(tensor.pointer, size_bytes, stream);
      made.push_back(std::move(tensor));
    }
    tensors_.insert(tensors_.end(), made.begin(), made.end());
  }

  /// A tensor of the run's stream that lies where a result of the op may be written over it; null if there is none.
  Tensor* find_input(std::int32_t op) {
    for (std::int32_t index = 0; const Slot* slot = table_.find(op, index); ++index) {
      for (Tensor& tensor : tensors_) {
        const auto* block = static_cast<char*>(allocator_.block_of(tensor.pointer));
        const std::int64_t cut_bytes = table_.cuts.empty() ? 0 : table_.cuts.front();
        const bool lies_there = block != nullptr && (tensor.pointer - block == slot->offset_bytes ||
                                                     tensor.pointer - block == slot->offset_bytes - cut_bytes);
        if (slot->reuses && lies_there && tensor.stream == run_stream_ && !tensor.is_dead) return &tensor;
      }
    }
    return nullptr;
  }

  void expect_apart(const Tensor& tensor, const std::vector<Tensor>& made, const Tensor* input) {
    for (const auto* some : std::array<const std::vector<Tensor>*, 2>{&tensors_, &made}) {
      for (const Tensor& other : *some) {
        const bool is_apart =
            tensor.pointer + tensor.size_bytes <= other.pointer || other.pointer + other.size_bytes <= tensor.pointer;
        EXPECT_TRUE(is_apart || (&other == input && other.pointer == tensor.pointer)) << "a live tensor lies there";
      }
    }
  }

  void use_tensor() {
    if (tensors_.empty()) return;
    Tensor& tensor = tensors_[static_cast<std::size_t>(below(static_cast<int>(tensors_.size())))];
    if (tensor.is_dead) return;
    const Stream stream = any_stream();
    for (const Stream user : tensor.users) upstream_.synchronize(stream, user);
    upstream_.touch(tensor.pointer, tensor.size_bytes, stream);
    if (stream != tensor.stream && !allocator_.record_stream(tensor.pointer, stream)) {
      upstream_.record_stream(tensor.pointer, stream);
    }
    tensor.users.insert(stream);
  }

  void free_tensor(std::size_t which) {
    void* pointer = tensors_[which].pointer;
    tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(which));
    if (below(4) == 0) {
      std::thread([&] { allocator_.free(pointer); }).join();
    } else {
      allocator_.free(pointer);
    }
  }

  std::mt19937 random_;
  FakeUpstream upstream_;
  PlannedAllocator allocator_{upstream_};
  SlotTable table_{.slots = {}, .first_slot = {0}, .arena_bytes = 64 * 17};
  std::optional<PlannedSession> session_;
  Stream run_stream_ = 0;
  std::vector<Tensor> tensors_;
  std::int64_t hits_ = 0;
  std::int64_t reused_ = 0;
};

TEST(StreamOrders, NoMemoryIsGivenToWorkThatDoesNotFollowItsLastOwners) {
  std::int64_t hits = 0;
  std::int64_t reused = 0;
  std::int64_t cuts = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program(seed);
    for (int step = 0; step < 400; ++step) program.step();
    hits += program.hits();
    reused += program.reused();
    cuts += program.cuts();
    if (HasFailure()) break;
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(reused, 20);
  EXPECT_GT(cuts, 20);
}

TEST(StreamOrders, TwoThreadsEndAQuarantineOnce) {
  for (int run = 0; run < 200; ++run) {
    FakeUpstream upstream;
    PlannedAllocator allocator(upstream);
    const SlotTable table{.slots = {{0, 64}, {64, 64}}, .first_slot = {0, 2}, .arena_bytes = 128};
    allocator.set_poison(true);
    allocator.reserve_arena(table);
    {
      PlannedSession session(allocator, table);
      session.enter_op(0);
      for (int index = 0; index < 2; ++index) {
        void* pointer = allocator.allocate(64);
        upstream.synchronize(16, 0);
        upstream.touch(pointer, 64, 16);
        allocator.record_stream(pointer, 16);
        allocator.free(pointer);
      }
    }
    allocator.release_arena();
    ASSERT_EQ(upstream.live_blocks(), 1U);
    std::array<std::thread, 3> askers;
    std::atomic<int> given_back = 0;
    for (std::thread& asker : askers) {
      asker = std::thread([&] {
        while (upstream.live_blocks() != 0) given_back += allocator.release_idle_arena() ? 1 : 0;
      });
    }
    upstream.finish(16);
    for (std::thread& asker : askers) asker.join();
    EXPECT_EQ(given_back, 1);  // and the fake upstream says if the block was freed twice
  }
}

TEST(StreamOrders, SlotsAreFreedOnOtherThreadsWhileStreamsFinish) {
  FakeUpstream upstream;
  PlannedAllocator allocator(upstream);
  const SlotTable table{.slots = {{0, 64}, {64, 64}, {0, 128}}, .first_slot = {0, 2, 3}, .arena_bytes = 128};
  allocator.set_poison(true);
  auto work = [&](Stream stream, Stream other) {
    FakeUpstream::t_stream = stream;
    for (int run = 0; run < 150; ++run) {
      allocator.reserve_arena(table);
      PlannedSession session(allocator, table);
      std::vector<void*> made;
      for (const std::int32_t op : {0, 1}) {
        session.enter_op(op);
        made.push_back(allocator.allocate(64, stream));
        upstream.touch(made.back(), 64, stream);
      }
      upstream.synchronize(other, stream);
      upstream.touch(made[0], 64, other);
      if (!allocator.record_stream(made[0], other)) upstream.record_stream(made[0], other);
      std::thread freeing([&] {
        for (void* pointer : made) allocator.free(pointer);
      });
      if (run % 3 == 0) upstream.finish(other);
      if (run % 7 == 0) allocator.release_arena();
      freeing.join();
    }
    upstream.finish(other);
  };
  std::thread first(work, Stream{16}, Stream{32});
  std::thread second(work, Stream{48}, Stream{64});
  first.join();
  second.join();
  allocator.release_arena();
  EXPECT_EQ(upstream.live_blocks(), 0U);
}

}  // namespace
}  // namespace stowage
