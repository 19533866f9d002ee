#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::detail {

/// Compressed id of every token of a byte-level vocabulary: tokens whose decoded text is equal after
/// normalisation share one. Ids count up in the order in which new texts are first seen.
///
/// Range: a token that is not whole UTF-8 by itself, or holds U+FFFD, is told apart by its raw
///        vocabulary string; one that normalises to nothing by its text.
std::vector<std::int32_t> compress_vocabulary(std::span<const std::string> token_of_id);

}  // namespace penstock::detail
