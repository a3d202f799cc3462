// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/address_space.h"

#include <gtest/gtest.h>

namespace drycuda {
namespace {

TEST(AddressSpace, GivesOutTheLowestThatFits) {
  AddressSpace space(1024, 4096);
  EXPECT_EQ(space.take(512, 1), 1024);
  EXPECT_EQ(space.take(512, 1), 1536);
  EXPECT_EQ(space.take(512, 1), 2048);
  EXPECT_EQ(space.give(1024), 512);
  EXPECT_EQ(space.give(2048), 512);
  EXPECT_EQ(space.take(1024, 1), 2048);  // too large for the hole at 1024
  EXPECT_EQ(space.take(256, 1), 1024);
}

TEST(AddressSpace, Aligns) {
  AddressSpace space(1000, 4096);
  EXPECT_EQ(space.take(100, 512), 1024);
  EXPECT_EQ(space.take(24, 1), 1000);  // what alignment left over
}

TEST(AddressSpace, JoinsNeighboursThatCameBack) {
  AddressSpace space(1024, 3072);
  for (const std::uint64_t address : {1024, 2048, 3072}) ASSERT_EQ(space.take(1024, 1), address);
  EXPECT_EQ(space.take(1, 1), 0);
  EXPECT_EQ(space.give(1024), 1024);
  EXPECT_EQ(space.give(3072), 1024);
  EXPECT_EQ(space.take(2048, 1), 0);
  EXPECT_EQ(space.give(2048), 1024);
  EXPECT_EQ(space.take(3072, 1), 1024);
}

TEST(AddressSpace, TakesBackOnlyWhatItGave) {
  AddressSpace space(1024, 4096);
  ASSERT_EQ(space.take(512, 1), 1024);
  EXPECT_EQ(space.give(1025), 0);
  EXPECT_EQ(space.give(1024), 512);
  EXPECT_EQ(space.give(1024), 0);
}

}  // namespace
}  // namespace drycuda
