#include "penstock/core/switch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr std::array<std::string_view, 4> kOn{"1", "true", "yes", "on"};

// ASCII only: the words are, and the locale must not decide what a switch means.
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool parse_switch(std::string_view name, const std::optional<std::string>& text) {
  if (!text || *text == "0") return false;
  std::string word = *text;
  std::ranges::transform(word, word.begin(), lower);
  if (std::ranges::find(kOn, word) != kOn.end()) return true;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("{}: found \"{}\", needs 1, true, yes or on, or 0, or to be unset", name, *text));
}

}  // namespace penstock
