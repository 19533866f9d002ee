#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock {

/// The meaning of an environment switch: 1, true, yes and on (in any case) turn it on; 0, or no
/// value at all, turns it off. A pure function of its arguments, so that ranks can compare the texts
/// they found before any of them acts on its own.
///
/// Errors: InvalidArgument for every other text, the empty one included; the message has `name`.
bool parse_switch(std::string_view name, const std::optional<std::string>& text);

}  // namespace penstock
