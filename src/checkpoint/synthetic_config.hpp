#pragma once

#include <string>

#include "penstock/checkpoint/synthetic_model.hpp"

namespace penstock::detail {

/// The text of the config.json of a model with `options`.
///
/// Errors: InvalidArgument for options that make no model, naming the option.
std::string synthetic_config(const SyntheticModelOptions& options);

}  // namespace penstock::detail
