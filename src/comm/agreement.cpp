#include "comm/agreement.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/to_size.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

/// Adds up `bytes`; nothing if their number is wrong, one is negative or the sum does not fit.
std::optional<std::uint64_t> sum_of(std::span<const std::int64_t> bytes, int size) {
  if (bytes.size() != to_size(size)) return std::nullopt;
  std::int64_t sum = 0;
  for (const std::int64_t n : bytes) {
    if (n < 0 || __builtin_add_overflow(sum, n, &sum)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(sum);
}

std::string describe_detail(const CallArguments& call) {
  if (call.collective == Collective::Broadcast) return fmt::format("root {}", call.detail);
  return fmt::format("element type {}", to_string(static_cast<DType>(call.detail)));
}

/// Where the sizes of all_to_all_v contradict each other.
std::optional<std::string> find_size_conflict(std::span<const CallArguments* const> calls) {
  for (std::size_t from = 0; from < calls.size(); ++from) {
    for (std::size_t to = 0; to < calls.size(); ++to) {
      const std::int64_t sent = calls[from]->in_bytes[to];
      const std::int64_t expected = calls[to]->out_bytes[from];
      if (sent == expected) continue;
      return fmt::format("all_to_all_v: rank {} sends {} bytes to rank {}, which expects {}", from,
                         sent, to, expected);
    }
  }
  return std::nullopt;
}

/// Appends plain values to a byte string.
class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  void put_list(const T& list) {
    put<std::uint64_t>(list.size());
    put_bytes(std::as_bytes(std::span(list.data(), list.size())));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  void get(T& value) {
    const auto part = take(sizeof(T));
    std::memcpy(&value, part.data(), sizeof(T));
  }
  template <typename T>
  void get_list(T& list) {
    std::uint64_t count = 0;
    get(count);
    check(count <= bytes_.size() / sizeof(typename T::value_type));
    list.resize(static_cast<std::size_t>(count));
    const auto part = take(list.size() * sizeof(typename T::value_type));
    if (!part.empty()) std::memcpy(list.data(), part.data(), part.size());
  }
  void check(bool is_sound) const {
    if (!is_sound) throw Error(ErrorCode::PeerFailed, "decode_call: a rank sent a malformed call");
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t count) {
    check(count <= bytes_.size());
    const auto part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }

  std::span<const std::byte> bytes_;
};

float load_element(const std::byte* from, DType dtype) {
  if (dtype == DType::F32) {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  BF16 value;
  std::memcpy(&value, from, sizeof(value));
  return to_float(value);
}

void store_element(std::byte* to, float value, DType dtype) {
  if (dtype == DType::F32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const BF16 rounded = to_bf16(value);
  std::memcpy(to, &rounded, sizeof(rounded));
}

}  // namespace

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::AllGather: return "all_gather";
    case Collective::AllToAll: return "all_to_all";
    case Collective::AllToAllV: return "all_to_all_v";
    case Collective::ReduceScatter: return "reduce_scatter";
    case Collective::Broadcast: return "broadcast";
    case Collective::Barrier: return "barrier";
    case Collective::AllGatherObject: return "all_gather_object";
    case Collective::Split: return "split";
  }
  throw Error(ErrorCode::Internal, "to_string: not a Collective");
}

CallArguments describe_all_gather(int size, std::size_t in_bytes, std::size_t out_bytes) {
  CallArguments call{.collective = Collective::AllGather, .block_bytes = in_bytes};
  if (out_bytes / to_size(size) != in_bytes || out_bytes % to_size(size) != 0) {
    call.problem = fmt::format("out has {} bytes, needs {} blocks of the {} bytes of in", out_bytes,
                               size, in_bytes);
  }
  return call;
}

CallArguments describe_all_to_all(int size, std::size_t in_bytes, std::size_t out_bytes,
                                  std::size_t block_bytes) {
  CallArguments call{.collective = Collective::AllToAll, .block_bytes = block_bytes};
  const auto fits = [&](std::size_t bytes) {
    return bytes / to_size(size) == block_bytes && bytes % to_size(size) == 0;
  };
  if (!fits(in_bytes) || !fits(out_bytes)) {
    call.problem = fmt::format("in has {} and out {} bytes, both need {} blocks of {}", in_bytes,
                               out_bytes, size, block_bytes);
  }
  return call;
}

CallArguments describe_all_to_all_v(int size, std::size_t in_size,
                                    std::span<const std::int64_t> in_bytes, std::size_t out_size,
                                    std::span<const std::int64_t> out_bytes) {
  CallArguments call{.collective = Collective::AllToAllV};
  const auto in_sum = sum_of(in_bytes, size);
  const auto out_sum = sum_of(out_bytes, size);
  if (!in_sum || !out_sum) {
    call.problem =
        fmt::format("in_bytes has {} and out_bytes {} entries, both need {} that are not negative",
                    in_bytes.size(), out_bytes.size(), size);
    return call;
  }
  if (*in_sum != in_size || *out_sum != out_size) {
    call.problem = fmt::format("in has {} and out {} bytes, the block sizes add up to {} and {}",
                               in_size, out_size, *in_sum, *out_sum);
  }
  call.in_bytes.assign(in_bytes.begin(), in_bytes.end());
  call.out_bytes.assign(out_bytes.begin(), out_bytes.end());
  return call;
}

CallArguments describe_reduce_scatter(int size, std::size_t in_bytes, std::size_t out_bytes,
                                      DType dtype) {
  CallArguments call{.collective = Collective::ReduceScatter,
                     .block_bytes = out_bytes,
                     .detail = static_cast<std::int32_t>(dtype)};
  if (dtype != DType::F32 && dtype != DType::BF16) {
    call.problem = fmt::format("element type {}, must be F32 or BF16", to_string(dtype));
  } else if (out_bytes % to_size(element_bytes(dtype)) != 0) {
    call.problem = fmt::format("out has {} bytes, not a whole number of {} elements", out_bytes,
                               to_string(dtype));
  } else if (in_bytes / to_size(size) != out_bytes || in_bytes % to_size(size) != 0) {
    call.problem = fmt::format("in has {} bytes, needs {} blocks of the {} bytes of out", in_bytes,
                               size, out_bytes);
  }
  return call;
}

CallArguments describe_broadcast(int size, std::size_t bytes, int root) {
  CallArguments call{.collective = Collective::Broadcast, .block_bytes = bytes, .detail = root};
  if (root < 0 || root >= size)
    call.problem = fmt::format("root {}, must be in [0, {})", root, size);
  return call;
}

CallArguments describe_split(int color, int key) {
  return {.collective = Collective::Split, .color = color, .key = key};
}

std::optional<std::string> find_disagreement(std::span<const CallArguments* const> calls) {
  const CallArguments& first = *calls[0];
  const std::string_view name = to_string(first.collective);
  for (std::size_t r = 1; r < calls.size(); ++r) {
    if (calls[r]->collective == first.collective) continue;
    return fmt::format("{}: rank {} calls {}, rank 0 calls {}", name, r,
                       to_string(calls[r]->collective), name);
  }
  for (std::size_t r = 0; r < calls.size(); ++r) {
    if (calls[r]->problem.empty()) continue;
    return fmt::format("{}: rank {}: {}", name, r, calls[r]->problem);
  }
  for (std::size_t r = 1; r < calls.size(); ++r) {
    if (calls[r]->block_bytes != first.block_bytes) {
      return fmt::format("{}: rank {} passes {} bytes, rank 0 passes {}; they must be equal", name,
                         r, calls[r]->block_bytes, first.block_bytes);
    }
    if (calls[r]->detail != first.detail) {
      return fmt::format("{}: rank {} passes {}, rank 0 passes {}; they must be equal", name, r,
                         describe_detail(*calls[r]), describe_detail(first));
    }
  }
  if (first.collective == Collective::AllToAllV) return find_size_conflict(calls);
  return std::nullopt;
}

std::optional<std::string> find_disagreement(std::span<const CallArguments> calls) {
  std::vector<const CallArguments*> pointers;
  pointers.reserve(calls.size());
  for (const CallArguments& call : calls) pointers.push_back(&call);
  return find_disagreement(pointers);
}

std::vector<std::byte> encode_call(const CallArguments& call) {
  Writer writer;
  writer.put(call.collective);
  writer.put(call.block_bytes);
  writer.put(call.detail);
  writer.put(call.color);
  writer.put(call.key);
  writer.put_list(call.in_bytes);
  writer.put_list(call.out_bytes);
  writer.put_list(call.problem);
  return writer.take();
}

CallArguments decode_call(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  CallArguments call;
  reader.get(call.collective);
  reader.check(call.collective <= Collective::Split);
  reader.get(call.block_bytes);
  reader.get(call.detail);
  reader.get(call.color);
  reader.get(call.key);
  reader.get_list(call.in_bytes);
  reader.get_list(call.out_bytes);
  reader.get_list(call.problem);
  reader.check(reader.empty());
  return call;
}

std::vector<std::vector<int>> split_groups(std::span<const CallArguments> calls) {
  std::map<int, std::vector<int>> by_color;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    if (calls[r].color >= 0) by_color[calls[r].color].push_back(static_cast<int>(r));
  }
  std::vector<std::vector<int>> groups;
  for (auto& [color, ranks] : by_color) {
    std::ranges::sort(ranks, {},
                      [&](int rank) { return std::pair(calls[to_size(rank)].key, rank); });
    groups.push_back(std::move(ranks));
  }
  return groups;
}

void sum_blocks(std::span<const std::byte* const> blocks, std::span<std::byte> out, DType dtype) {
  const auto element = to_size(element_bytes(dtype));
  for (std::size_t at = 0; at < out.size(); at += element) {
    float sum = load_element(blocks[0] + at, dtype);
    for (std::size_t r = 1; r < blocks.size(); ++r) sum += load_element(blocks[r] + at, dtype);
    store_element(out.data() + at, sum, dtype);
  }
}

}  // namespace penstock::detail
