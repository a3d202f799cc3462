// SPDX-License-Identifier: Apache-2.0
#include "plugin/tensor_bytes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace stowage {
namespace {

std::uint64_t digest_of(const c10::IValue& value) {
  std::int64_t unread = 0;
  return digest(value, unread).value();
}

/// Bytes 0 to `count` - 1.
at::Tensor counted(std::int64_t count) { return at::arange(count, at::kByte); }

TEST(BytesOf, ReadsAnyViewsElementsAndNoOthers) {
  const at::Tensor base = counted(24).view({2, 3, 4});
  EXPECT_EQ(bytes_of(base.select(1, 1)), std::string("\x04\x05\x06\x07\x10\x11\x12\x13")) << "rows of a view";
  EXPECT_EQ(bytes_of(base.select(2, 1)), std::string("\x01\x05\x09\x0d\x11\x15")) << "columns";
  EXPECT_EQ(bytes_of(base.slice(0, 1).slice(2, 0, 4, 2)), std::string("\x0c\x0e\x10\x12\x14\x16")) << "every other";
  EXPECT_EQ(bytes_of(counted(3).slice(0, 1).expand({2, 2})), std::string("\x01\x02\x01\x02")) << "expanded";
  EXPECT_EQ(bytes_of(counted(4).select(0, 3)), std::string("\x03")) << "no dimensions";
  EXPECT_EQ(bytes_of(at::empty({0, 3})), "");
  EXPECT_EQ(bytes_of(at::Tensor()), "");
}

TEST(BytesOf, ReadsWhatLiesSideBySideInTheOrderOfMemory) {
  EXPECT_EQ(bytes_of(counted(6).view({2, 3}).t()), bytes_of(counted(6)));
}

TEST(BytesOf, ReadsContainersInOrder) {
  const c10::IValue pair = c10::ivalue::Tuple::create(counted(3), c10::List<at::Tensor>({counted(4), counted(2)}));
  EXPECT_EQ(bytes_of(pair).size(), 9u);
  EXPECT_EQ(bytes_of(pair).substr(7), bytes_of(counted(2)));
}

TEST(Digest, TellsEveryBitOfEveryLengthApart) {
  for (std::int64_t count = 1; count <= 20; ++count) {
    const at::Tensor base = counted(count);
    for (std::int64_t byte = 0; byte < count; ++byte) {
      at::Tensor other = base.clone();
      other[byte].bitwise_xor_(0x80);
      EXPECT_NE(digest_of(other), digest_of(base)) << byte << " of " << count;
    }
    EXPECT_EQ(digest_of(base.clone()), digest_of(base));
  }
}

TEST(Digest, TellsWhatComparingNumbersWouldNot) {
  const at::Tensor zero = at::zeros({4});
  EXPECT_NE(digest_of(zero), digest_of(zero.neg())) << "signed zeros";
  const at::Tensor nan = at::full({4}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(digest_of(nan), digest_of(nan.clone())) << "NaNs of the same bits";
  EXPECT_NE(digest_of(nan), digest_of(nan.view(at::kInt).add(1).view(at::kFloat))) << "payload";
  EXPECT_NE(digest_of(zero), digest_of(zero.view(at::kInt))) << "dtype";
  EXPECT_NE(digest_of(zero), digest_of(zero.view({2, 2}))) << "shape";
  EXPECT_NE(digest_of(at::zeros({2, 3})), digest_of(at::zeros({3, 2}).t())) << "strides";
  EXPECT_NE(digest_of(1), digest_of(2));
  EXPECT_NE(digest_of(0.0), digest_of(-0.0));
  EXPECT_NE(digest_of(std::string("a")), digest_of(std::string("b")));
}

TEST(Digest, IgnoresTheBytesBetweenTheElementsOfAView) {
  const at::Tensor base = counted(24).view({4, 6});
  const at::Tensor view = base.slice(1, 0, 3);
  const std::uint64_t before = digest_of(view);
  base.slice(1, 3).zero_();
  EXPECT_EQ(digest_of(view), before);
  base.select(1, 2).zero_();
  EXPECT_NE(digest_of(view), before);
}

TEST(Digest, CountsWhatItCannotRead) {
  std::int64_t unread = 0;
  const at::Tensor sparse = at::eye(3).to_sparse();
  digest(c10::List<at::Tensor>({sparse, counted(3), sparse}), unread);
  EXPECT_EQ(unread, 2);
}

}  // namespace
}  // namespace stowage
