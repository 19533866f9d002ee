#pragma once

// One suite for every engine. A Backend runs a function on each rank of a fresh group: on threads of
// this process, or on this process's rank alone when the ranks are processes that all run the same
// test. So every expectation is one that a rank can check by itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock::contract {

using RankBody = std::function<void(std::unique_ptr<Communicator>)>;

struct Backend {
  std::string name;
  int size = 1;
  std::function<void(int size, const CommOptions& options, const RankBody& body)> run;
};

inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

inline std::string backend_name(const testing::TestParamInfo<Backend>& param) {
  return param.param.name;
}

/// Long enough that a loaded machine never meets it.
inline constexpr CommOptions kPatient{.deadline = std::chrono::seconds(30)};

using Bytes = std::vector<std::byte>;

/// Bytes that tell who made them, for whom, and where they lie.
inline Bytes pattern(int from, int to, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<unsigned>(from) * 31U + static_cast<unsigned>(to) * 7U +
                       static_cast<unsigned>(i) * 13U + static_cast<unsigned>(i >> 8U);
    bytes[i] = static_cast<std::byte>(value & 0xFFU);
  }
  return bytes;
}

inline void append(Bytes& to, const Bytes& from) {
  to.insert(to.end(), from.begin(), from.end());
}

inline std::size_t to_size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The error that `call` throws; fails the test if it throws nothing or something else.
template <typename Call>
std::string error_of(ErrorCode code, Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown, " << to_string(code) << " was expected";
  return {};
}

/// Shows that the group still works.
inline void expect_usable(Communicator& comm) {
  const Bytes mine = pattern(comm.rank(), 0, 9);
  Bytes all(to_size(comm.size()) * 9);
  comm.all_gather(mine, all);
  Bytes expected;
  for (int r = 0; r < comm.size(); ++r) append(expected, pattern(r, 0, 9));
  EXPECT_EQ(all, expected);
}

class CommunicatorContract : public testing::TestWithParam<Backend> {
 protected:
  void on_every_rank(const std::function<void(Communicator&)>& body,
                     const CommOptions& options = kPatient) {
    with_ownership([&](std::unique_ptr<Communicator> comm) { body(*comm); }, options);
  }

  /// For tests in which a rank destroys its communicator.
  void with_ownership(const RankBody& body, const CommOptions& options = kPatient) {
    GetParam().run(GetParam().size, options, [&](std::unique_ptr<Communicator> comm) {
      try {
        body(std::move(comm));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "a rank threw: " << error.what();
      }
    });
  }

  /// `call` has arguments that some rank gets wrong: every rank must hear of it, with `message` in
  /// the text, `out` must stay as it was, and the group must go on working.
  void expect_refusal(const std::string& message,
                      const std::function<void(Communicator&, Bytes& out)>& call) {
    on_every_rank([&](Communicator& comm) {
      const Bytes before = pattern(99, 99, to_size(comm.size()) * 64);
      Bytes out = before;
      EXPECT_THAT(error_of(ErrorCode::InvalidArgument, [&] { call(comm, out); }),
                  testing::HasSubstr(message));
      EXPECT_EQ(out, before);
      expect_usable(comm);
    });
  }

  int last() const { return GetParam().size - 1; }
};

/// What needs somebody to disagree with: instantiated for at least two ranks.
class CommunicatorPeersContract : public CommunicatorContract {};

}  // namespace penstock::contract
