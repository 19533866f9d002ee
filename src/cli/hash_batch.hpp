#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock::cli {

/// One request of a batch file.
struct HashRequest {
  std::vector<std::int32_t> ids;
  std::int64_t position = 0;           ///< Of the first id.
  std::vector<std::int32_t> lookback;  ///< Newest first; as long as the hash looks back.
};

/// A batch file: `{"requests": [{"ids": [..], "position": p, "lookback": [..]}],
/// "token_map": "identity" | [..] | "path", "dead_token": null | id}`. The keys `config` and `rows`
/// are ignored.
struct HashBatch {
  std::vector<HashRequest> requests;
  TokenMap token_map;
  std::optional<std::int32_t> dead_token;
};

/// Reads a batch for a model. A missing position is 0, a missing lookback unknown, a short one is
/// filled up with -1; a missing token map is the identity. A path is relative to the file's folder
/// and names a saved map or a tokenizer.json.
///
/// Errors: NotFound; CorruptFile for bad JSON, equal or unknown keys, values of another kind, a
///         lookback that is too long; the message names the file and the place in it.
HashBatch load_hash_batch(const std::filesystem::path& file, const ModelConfig& model);

}  // namespace penstock::cli
