// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_buffers.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stowage::profiler {
namespace {

std::uint8_t* request() {
  std::uint8_t* buffer = nullptr;
  std::size_t size_bytes = 0;
  std::size_t max_records = 9;
  CuptiBuffers::request(&buffer, &size_bytes, &max_records);
  EXPECT_EQ(size_bytes, buffer == nullptr ? 0 : CuptiBuffers::kBufferBytes);
  EXPECT_EQ(max_records, 0U);
  return buffer;
}

void complete(std::uint8_t* buffer, std::size_t valid_bytes) {
  CuptiBuffers::complete(nullptr, 0, buffer, CuptiBuffers::kBufferBytes, valid_bytes);
}

TEST(CuptiBuffers, KeepsWhatCameBackInOrder) {
  ASSERT_TRUE(CuptiBuffers::instance().open());
  std::uint8_t* const first = request();
  std::uint8_t* const second = request();
  complete(second, 16);
  complete(first, CuptiBuffers::kBufferBytes + 1);  // more than there is room for
  const CuptiBuffers::Left left = CuptiBuffers::instance().close();
  ASSERT_EQ(left.full.size(), 2U);
  EXPECT_EQ(left.full[0].bytes.get(), second);
  EXPECT_EQ(left.full[0].valid_bytes, 16U);
  EXPECT_EQ(left.full[1].valid_bytes, CuptiBuffers::kBufferBytes);
  EXPECT_EQ(left.missing, 0);
}

TEST(CuptiBuffers, RecordsOneRunAtATime) {
  ASSERT_TRUE(CuptiBuffers::instance().open());
  EXPECT_FALSE(CuptiBuffers::instance().open());
  CuptiBuffers::instance().close();
  EXPECT_TRUE(CuptiBuffers::instance().open());
  CuptiBuffers::instance().close();
}

TEST(CuptiBuffers, GivesNoMoreThanItsLimit) {
  ASSERT_TRUE(CuptiBuffers::instance().open());
  std::vector<std::uint8_t*> given;
  for (std::size_t count = 0; count < CuptiBuffers::kMaxBuffers; ++count) given.push_back(request());
  EXPECT_NE(given.back(), nullptr);
  EXPECT_EQ(request(), nullptr);
  complete(given.back(), 8);
  EXPECT_EQ(request(), nullptr);  // it is kept until the run ends
  EXPECT_EQ(CuptiBuffers::instance().close().missing, CuptiBuffers::kMaxBuffers - 1);
  given.pop_back();
  for (std::uint8_t* buffer : given) complete(buffer, 8);

  ASSERT_TRUE(CuptiBuffers::instance().open());
  std::uint8_t* const buffer = request();
  EXPECT_NE(buffer, nullptr);
  complete(buffer, 0);
  EXPECT_EQ(CuptiBuffers::instance().close().full.size(), 1U);
}

TEST(CuptiBuffers, LeavesAnothersBufferAlone) {
  ASSERT_TRUE(CuptiBuffers::instance().open());
  std::uint8_t others[64] = {};
  complete(others, sizeof(others));
  complete(nullptr, 0);
  EXPECT_TRUE(CuptiBuffers::instance().close().full.empty());
}

TEST(CuptiBuffers, ServesThreadsAtOnce) {
  ASSERT_TRUE(CuptiBuffers::instance().open());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      for (int round = 0; round < 20; ++round) {
        std::uint8_t* const buffer = request();
        buffer[0] = 1;
        complete(buffer, 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const CuptiBuffers::Left left = CuptiBuffers::instance().close();
  EXPECT_EQ(left.full.size(), 80U);
  EXPECT_EQ(left.missing, 0);
}

}  // namespace
}  // namespace stowage::profiler
