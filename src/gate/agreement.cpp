#include "gate/agreement.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <exception>
#include <span>

namespace penstock::detail {
namespace {

using nlohmann::json;

constexpr int kNoError = -1;

/// How the step went on one rank.
struct Outcome {
  int code = kNoError;
  std::string message;
  AgreedFields fields;
};

std::vector<std::byte> encode(const Outcome& outcome) {
  const auto bytes = json::to_cbor(json{outcome.code, outcome.message, outcome.fields});
  const auto view = std::as_bytes(std::span(bytes));
  return {view.begin(), view.end()};
}

Outcome decode(std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const json document = json::from_cbor(begin, begin + bytes.size());
  return {document.at(0).get<int>(), document.at(1).get<std::string>(),
          document.at(2).get<AgreedFields>()};
}

Outcome attempt(const std::function<AgreedFields()>& step, std::exception_ptr& thrown) {
  try {
    return {kNoError, {}, step()};
  } catch (const Error& error) {
    thrown = std::current_exception();
    return {static_cast<int>(error.code()), error.what(), {}};
  } catch (const std::bad_alloc&) {
    const Error error(ErrorCode::OutOfMemory, "GateLinear: out of host memory");
    thrown = std::make_exception_ptr(error);
    return {static_cast<int>(error.code()), error.what(), {}};
  }
}

void compare(const std::string& where, const AgreedFields& first, const AgreedFields& other,
             std::size_t rank) {
  for (std::size_t i = 0; i < first.size() && i < other.size(); ++i) {
    if (first[i] == other[i]) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: {} is {} on rank 0 and {} on rank {}; all ranks need the same",
                            where, first[i].first, first[i].second, other[i].second, rank));
  }
}

}  // namespace

void agree(Communicator* comm, const std::string& where,
           const std::function<AgreedFields()>& step) {
  std::exception_ptr thrown;
  const Outcome mine = attempt(step, thrown);
  if (comm == nullptr || comm->size() == 1) {
    if (thrown) std::rethrow_exception(thrown);
    return;
  }
  const auto all = comm->all_gather_object(encode(mine));
  if (thrown) std::rethrow_exception(thrown);
  std::vector<Outcome> outcomes;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    outcomes.push_back(decode(all[rank]));
    if (outcomes.back().code == kNoError) continue;
    throw Error(static_cast<ErrorCode>(outcomes.back().code),
                fmt::format("{}: rank {} failed: {}", where, rank, outcomes.back().message));
  }
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    compare(where, outcomes[0].fields, outcomes[rank].fields, rank);
  }
}

}  // namespace penstock::detail
