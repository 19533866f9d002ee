#pragma once

#include <map>
#include <string>
#include <string_view>

namespace penstock::detail {

/// Tensor name -> file name, from the text of a model.safetensors.index.json.
///
/// Errors: CorruptFile for bad JSON, no weight_map, or a file that is not a plain relative name.
std::map<std::string, std::string, std::less<>> parse_weight_index(std::string_view json,
                                                                   std::string_view source);

}  // namespace penstock::detail
