#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/engram/ngram_hasher.hpp"

namespace penstock::cli {

/// One sequence of tokens. `first_token` is where it starts in the run's own numbering, which counts
/// the tokens of all requests one after another.
struct Request {
  std::vector<std::int32_t> ids;
  std::int64_t first_token = 0;
};

/// What a replica computes at once: a chunk of each of its unfinished requests.
struct Step {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> query_start = {0};
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> lookback;
  std::vector<std::int64_t> tokens;  ///< Of each token: its number in the run.

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(token_ids.size()); }
  TokenBatch batch() const { return {token_ids, query_start, positions, lookback}; }
};

struct WorkloadOptions {
  int requests = 0;          ///< Cut a single stream into that many requests; 0: leave as it is.
  std::int64_t chunk = 512;  ///< Tokens of a request in one prefill step.
  std::int64_t decode = 8;   ///< Last tokens of a request that are fed one by one.
  int replicas = 1;          ///< Requests are dealt to replicas in turn.
  int lookback_depth = 3;
};

/// The requests of a run: `streams` as they are, or one stream cut into uneven pieces.
///
/// Errors: InvalidArgument if several streams are to be cut, or there are fewer tokens than requests.
std::vector<Request> make_requests(std::vector<std::vector<std::int32_t>> streams,
                                   const WorkloadOptions& options);

/// How many requests and tokens, and a number that depends on every token id and every length.
std::string describe_requests(const std::vector<Request>& requests);

/// The steps of one replica: prefill in chunks, then decode token by token. All replicas get the
/// same number of steps; one that has nothing left gets empty ones.
std::vector<Step> plan_steps(const std::vector<Request>& requests, int replica,
                             const WorkloadOptions& options);

}  // namespace penstock::cli
