#include "comm/agreement.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

CallArguments sample_call() {
  const std::vector<std::int64_t> in_bytes{1, 2, 3};
  const std::vector<std::int64_t> out_bytes{4, 0, 6};
  auto call = describe_all_to_all_v(3, 6, in_bytes, 10, out_bytes);
  call.problem = "a text";
  call.color = -4;
  return call;
}

TEST(DecodeCall, RestoresWhatWasEncoded) {
  const CallArguments call = sample_call();
  const CallArguments back = decode_call(encode_call(call));
  EXPECT_EQ(back.collective, call.collective);
  EXPECT_EQ(back.in_bytes, call.in_bytes);
  EXPECT_EQ(back.out_bytes, call.out_bytes);
  EXPECT_EQ(back.problem, call.problem);
  EXPECT_EQ(back.color, call.color);
}

TEST(DecodeCall, RefusesEveryTruncationAndATail) {
  std::vector<std::byte> bytes = encode_call(sample_call());
  for (std::size_t count = 0; count < bytes.size(); ++count) {
    EXPECT_THROW(decode_call(std::span(bytes).first(count)), Error) << count;
  }
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_call(bytes), Error);
}

TEST(DecodeCall, RefusesAnUnknownCollective) {
  std::vector<std::byte> bytes = encode_call({});
  bytes[0] = std::byte{0x7F};
  EXPECT_THROW(decode_call(bytes), Error);
}

TEST(DescribeAllToAllV, SeesASumThatOverflows) {
  const std::vector<std::int64_t> huge{INT64_MAX, INT64_MAX, 2};
  EXPECT_FALSE(describe_all_to_all_v(3, 0, huge, 0, huge).problem.empty());
}

}  // namespace
}  // namespace penstock::detail
