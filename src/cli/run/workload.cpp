#include "cli/run/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "penstock/core/error.hpp"
#include "penstock/engram/lookback_window.hpp"

namespace penstock::cli {
namespace {

/// Lengths that differ by up to a half, so that ragged steps are the normal case.
std::vector<std::int64_t> uneven_lengths(std::int64_t tokens, int pieces) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(pieces));
  std::int64_t weights = 0;
  for (int i = 0; i < pieces; ++i) weights += 2 + i % 3;
  std::int64_t given = 0;
  for (int i = 0; i < pieces; ++i) {
    const std::int64_t fair = std::max<std::int64_t>(1, tokens * (2 + i % 3) / weights);
    const std::int64_t left_for_others = pieces - 1 - i;
    const std::int64_t length =
        i == pieces - 1 ? tokens - given : std::min(fair, tokens - given - left_for_others);
    lengths[static_cast<std::size_t>(i)] = length;
    given += length;
  }
  return lengths;
}

/// End of the chunk that starts at `begin`.
std::int64_t chunk_end(std::int64_t begin, std::int64_t length, const WorkloadOptions& options) {
  const std::int64_t prefill = std::max<std::int64_t>(1, length - options.decode);
  if (begin < prefill) return std::min(prefill, begin + options.chunk);
  return begin + 1;
}

std::int64_t count_chunks(std::int64_t length, const WorkloadOptions& options) {
  std::int64_t chunks = 0;
  for (std::int64_t begin = 0; begin < length; ++chunks) begin = chunk_end(begin, length, options);
  return chunks;
}

void add_chunk(Step& step, const Request& request, int lookback_depth, LookbackWindow& window,
               std::int64_t end) {
  const std::int64_t begin = window.position();
  const std::size_t first = step.lookback.size();
  step.lookback.resize(first + static_cast<std::size_t>(lookback_depth));
  window.read(std::span(step.lookback).subspan(first));
  for (std::int64_t i = begin; i < end; ++i) {
    step.token_ids.push_back(request.ids[static_cast<std::size_t>(i)]);
    step.positions.push_back(i);
    step.tokens.push_back(request.first_token + i);
  }
  step.query_start.push_back(static_cast<std::int32_t>(step.token_ids.size()));
  window.append(
      std::span(request.ids)
          .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
}

}  // namespace

std::vector<Request> make_requests(std::vector<std::vector<std::int32_t>> streams,
                                   const WorkloadOptions& options) {
  std::vector<std::vector<std::int32_t>> pieces;
  if (options.requests > 0) {
    if (streams.size() != 1) {
      throw Error(
          ErrorCode::InvalidArgument,
          fmt::format("run: --requests cuts one stream, the token file has {}", streams.size()));
    }
    const auto tokens = static_cast<std::int64_t>(streams[0].size());
    if (tokens < options.requests) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("run: {} tokens cannot make {} requests", tokens, options.requests));
    }
    auto next = streams[0].begin();
    for (const std::int64_t length : uneven_lengths(tokens, options.requests)) {
      pieces.emplace_back(next, next + length);
      next += length;
    }
  } else {
    pieces = std::move(streams);
  }
  std::vector<Request> requests;
  std::int64_t first = 0;
  for (auto& ids : pieces) {
    const auto length = static_cast<std::int64_t>(ids.size());
    requests.push_back({std::move(ids), first});
    first += length;
  }
  return requests;
}

std::string describe_requests(const std::vector<Request>& requests) {
  // FNV-1a, word by word: equal files give equal numbers, others hardly ever.
  constexpr std::uint64_t kStart = 14695981039346656037ULL;
  constexpr std::uint64_t kFactor = 1099511628211ULL;
  std::uint64_t digest = kStart;
  std::size_t tokens = 0;
  for (const Request& request : requests) {
    digest = (digest ^ request.ids.size()) * kFactor;
    for (const std::int32_t id : request.ids) {
      digest = (digest ^ static_cast<std::uint32_t>(id)) * kFactor;
    }
    tokens += request.ids.size();
  }
  return fmt::format("{} requests of {} tokens (digest {:016x})", requests.size(), tokens, digest);
}

std::vector<Step> plan_steps(const std::vector<Request>& requests, int replica,
                             const WorkloadOptions& options) {
  std::int64_t num_steps = 0;
  for (const Request& request : requests) {
    num_steps =
        std::max(num_steps, count_chunks(static_cast<std::int64_t>(request.ids.size()), options));
  }
  std::vector<const Request*> mine;
  std::vector<LookbackWindow> windows;
  for (auto i = static_cast<std::size_t>(replica); i < requests.size();
       i += static_cast<std::size_t>(options.replicas)) {
    mine.push_back(&requests[i]);
    windows.emplace_back(options.lookback_depth);
  }
  std::vector<Step> steps(static_cast<std::size_t>(num_steps));
  for (Step& step : steps) {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto length = static_cast<std::int64_t>(mine[i]->ids.size());
      const std::int64_t begin = windows[i].position();
      if (begin == length) continue;
      add_chunk(step, *mine[i], options.lookback_depth, windows[i],
                chunk_end(begin, length, options));
    }
  }
  return steps;
}

}  // namespace penstock::cli
