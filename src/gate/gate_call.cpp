#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "gate/gate_state.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

void check_size(const char* name, std::size_t found, std::int64_t rows, std::int64_t columns) {
  if (found == static_cast<std::size_t>(rows * columns)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("GateLinear: {} has {} elements, {} tokens need {} ({} each)", name,
                          found, rows, rows * columns, columns));
}

bool overlap(std::span<const BF16> a, std::span<const BF16> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() &&
         b.data() < a.data() + a.size();
}

void check_width(const GateShape& shape, std::int64_t width) {
  if (shape.gating == GatingType::Elementwise && width != shape.output_size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: attn_out has {} columns, elementwise gating needs {}",
                            width, shape.output_size));
  }
  if (width <= 0 || width % shape.output_size != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: attn_out has {} columns, headwise gating needs a multiple "
                            "of the {} heads",
                            width, shape.output_size));
  }
}

void check_identical(GateStrategy strategy, const GateCall& call) {
  if (!call.identical_rows) return;
  const auto [begin, end] = *call.identical_rows;
  if (begin < 0 || begin > end || end > call.tokens) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: identical_rows is [{}, {}), needs to lie in [0, {})",
                            begin, end, call.tokens));
  }
  if (strategy == GateStrategy::IdenticalRows && end - begin != call.tokens) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: identical_rows has {} of {} rows, the strategy "
                            "identical_rows needs all (auto takes some)",
                            end - begin, call.tokens));
  }
}

void check_counts(const GateContext& gate, const GateCall& call, std::int64_t identical) {
  if (call.token_counts.empty()) return;
  if (call.token_counts.size() != static_cast<std::size_t>(gate.ranks)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: token_counts has {} entries, the group has {} ranks",
                            call.token_counts.size(), gate.ranks));
  }
  for (int rank = 0; rank < gate.ranks; ++rank) {
    const std::int64_t count = call.token_counts[static_cast<std::size_t>(rank)];
    if (count < identical) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("GateLinear: token_counts is {} for rank {}, needs at least {}",
                              count, rank, identical));
    }
  }
  const std::int64_t mine = call.token_counts[static_cast<std::size_t>(gate.rank)];
  if (mine != call.tokens) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: token_counts is {} for this rank ({}), x has {} rows",
                            mine, gate.rank, call.tokens));
  }
}

/// What one rank tells the others about its call.
struct CallNote {
  std::int64_t is_valid = 0;
  std::int64_t tokens = 0;
  std::int64_t identical = 0;
  std::uint64_t contents = 0;  ///< Of the identical rows, where the device lets us look.
  std::uint64_t counts = 0;    ///< Of token_counts; 0 without.
};

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t hash) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3ULL;
  }
  return hash;
}

constexpr std::uint64_t kHashStart = 0xCBF29CE484222325ULL;

CallNote note_of(const GateContext& gate, const GateCall& call, IndexRange identical) {
  CallNote note{.is_valid = 1, .tokens = call.tokens, .identical = identical.size()};
  if (gate.stream->device().kind == DeviceKind::Cpu) {
    const auto rows = [&](std::span<const BF16> all, std::int64_t width) {
      return std::as_bytes(all.subspan(static_cast<std::size_t>(identical.begin * width),
                                       static_cast<std::size_t>(identical.size() * width)));
    };
    note.contents = hash_bytes(rows(call.x, gate.shape.hidden_size), kHashStart);
    note.contents = hash_bytes(rows(call.attn_out, call.attn_width), note.contents);
  }
  if (!call.token_counts.empty()) {
    note.counts = hash_bytes(std::as_bytes(call.token_counts), kHashStart);
  }
  return note;
}

std::vector<CallNote> exchange_notes(Communicator& comm, const CallNote& mine) {
  std::array<std::byte, sizeof(CallNote)> bytes{};
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  std::vector<CallNote> notes;
  for (const auto& other : comm.all_gather_object(bytes)) {
    CallNote note;
    std::memcpy(&note, other.data(), std::min(other.size(), sizeof(note)));
    notes.push_back(note);
  }
  return notes;
}

void compare_notes(const std::vector<CallNote>& notes) {
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    const auto differs = [&](const char* what) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("GateLinear: {} differ between rank 0 and rank {}; they need to be "
                              "equal on all ranks",
                              what, rank));
    };
    if (notes[rank].is_valid == 0) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("GateLinear: the call of rank {} is invalid", rank));
    }
    if (notes[rank].identical != notes[0].identical) differs("numbers of identical rows");
    if (notes[rank].contents != notes[0].contents) differs("contents of identical rows");
    if (notes[rank].counts != notes[0].counts) differs("token_counts");
  }
}

/// Errors: InvalidArgument on all ranks if the call of one of them is wrong or they disagree.
std::vector<CallNote> compare_calls(const GateContext& gate, GateStrategy strategy,
                                    const GateCall& call) {
  CallNote mine;
  std::exception_ptr thrown;
  try {
    check_call(gate, strategy, call);
    mine = note_of(gate, call, identical_range(call, strategy));
  } catch (const Error&) {
    thrown = std::current_exception();
  }
  auto notes = exchange_notes(*gate.comm, mine);
  if (thrown) std::rethrow_exception(thrown);
  compare_notes(notes);
  return notes;
}

}  // namespace

IndexRange identical_range(const GateCall& call, GateStrategy strategy) {
  if (strategy == GateStrategy::IdenticalRows) return {0, call.tokens};
  return call.identical_rows.value_or(IndexRange{call.tokens, call.tokens});
}

void check_call(const GateContext& gate, GateStrategy strategy, const GateCall& call) {
  expects(call.tokens >= 0, "GateLinear: tokens is negative");
  if (call.tokens > 0) check_width(gate.shape, call.attn_width);
  check_size("x", call.x.size(), call.tokens, gate.shape.hidden_size);
  check_size("attn_out", call.attn_out.size(), call.tokens, call.attn_width);
  check_size("out", call.out.size(), call.tokens, call.attn_width);
  expects(call.out.data() == call.attn_out.data() || !overlap(call.out, call.attn_out),
          "GateLinear: out and attn_out overlap without being the same");
  expects(!overlap(call.out, call.x), "GateLinear: out and x overlap");
  check_identical(strategy, call);
  check_counts(gate, call, identical_range(call, strategy).size());
}

void learn_counts(const GateContext& gate, GateStrategy strategy, const GateCall& call,
                  const CountRules& rules, CallCounts& counts) {
  const std::int64_t identical =
      rules.splits_identical ? identical_range(call, strategy).size() : 0;
  const bool must_ask = rules.needs_all && call.token_counts.empty();
  counts.distinct.clear();
  if (gate.ranks > 1 && (rules.compares || must_ask)) {
    for (const CallNote& note : compare_calls(gate, strategy, call)) {
      counts.distinct.push_back(note.tokens - identical);
    }
  } else {
    check_call(gate, strategy, call);
    for (const std::int64_t count : call.token_counts) counts.distinct.push_back(count - identical);
    if (call.token_counts.empty()) counts.distinct.push_back(call.tokens - identical);
  }
  counts.longest = *std::ranges::max_element(counts.distinct);
}

}  // namespace penstock::detail
