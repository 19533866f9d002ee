#include "penstock/core/buffer.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

std::span<const std::byte> bytes_of(const std::vector<std::uint8_t>& values) {
  return std::as_bytes(std::span(values));
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::Internal;
}

TEST(Buffer, OfNoBytesIsEmpty) {
  const Buffer buffer = Buffer::allocate(Device::cpu(), 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0U);
}

TEST(Buffer, HoldsACopyOfWhatItIsMadeOf) {
  std::vector<std::uint8_t> values{1, 2, 3};
  const Buffer buffer = Buffer::copy_of(bytes_of(values), Device::cpu());
  values[0] = 9;
  ASSERT_EQ(buffer.bytes(), 3U);
  EXPECT_EQ(buffer.as<std::uint8_t>()[0], 1);
  EXPECT_EQ(buffer.as<std::uint8_t>()[2], 3);
}

TEST(Buffer, IsEmptyAfterAMove) {
  Buffer from = Buffer::zeros(Device::cpu(), 8);
  const Buffer to = std::move(from);
  EXPECT_EQ(to.bytes(), 8U);
  EXPECT_EQ(from.bytes(), 0U);  // NOLINT(bugprone-use-after-move): what this test is about
  EXPECT_EQ(from.data(), nullptr);
}

TEST(CopyBytes, RefusesWhatDoesNotFit) {
  const std::vector<std::uint8_t> three{1, 2, 3};
  Buffer two = Buffer::zeros(Device::cpu(), 2);
  std::array<std::byte, 3> out{};
  EXPECT_EQ(code_of([&] { copy_bytes(two, bytes_of(three)); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { copy_bytes(out, two); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { copy_bytes(out, bytes_of({1, 2}), Device::cpu()); }),
            ErrorCode::InvalidArgument);
}

TEST(CopyBytes, TakesTheStartOfABuffer) {
  const Buffer buffer = Buffer::copy_of(bytes_of({5, 6, 7}), Device::cpu());
  std::array<std::uint8_t, 2> out{};
  copy_bytes(std::as_writable_bytes(std::span(out)), buffer);
  EXPECT_EQ(out, (std::array<std::uint8_t, 2>{5, 6}));
}

TEST(CopyBytes, RefusesCudaMemoryInABuildWithoutCuda) {
  if constexpr (build::has_cuda) GTEST_SKIP() << "this build has CUDA";
  std::array<std::byte, 2> out{};
  EXPECT_EQ(code_of([&] { copy_bytes(out, bytes_of({1, 2}), Device::cuda(0)); }),
            ErrorCode::Unsupported);
}

}  // namespace
}  // namespace penstock
