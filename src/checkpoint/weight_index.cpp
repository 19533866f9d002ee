#include "checkpoint/weight_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/strict_json.hpp"

namespace penstock::detail {
namespace {

/// Inside the directory, whatever a stranger wrote: no root, no "..", no hidden tricks.
bool is_plain_name(const std::string& name) {
  const std::filesystem::path path(name);
  if (name.empty() || name.find('\0') != std::string::npos || !path.has_filename()) return false;
  return path.is_relative() &&
         std::ranges::none_of(path, [](const auto& part) { return part == ".." || part == "."; });
}

}  // namespace

std::map<std::string, std::string, std::less<>> parse_weight_index(std::string_view json,
                                                                   std::string_view source) {
  const auto index = parse_strict_json(json, source);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object()) {
    throw_corrupt(source, "no weight_map, needed: an object of tensor names and files");
  }
  std::map<std::string, std::string, std::less<>> files;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      throw_corrupt(source, fmt::format("tensor {} lies in {}, needed: a plain relative file name "
                                        "without \"..\"",
                                        in_quotes(tensor), printable(file)));
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

}  // namespace penstock::detail
