#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/run/run_options.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock::cli {

/// What one rank was told or has found, each with its name; or why it could not tell.
struct Settings {
  std::vector<std::pair<std::string, std::string>> values;
  std::string error = {};
};

/// Goes on only if all ranks have the same.
///
/// Collective: over `world`, with the same names.
/// Errors:     InvalidArgument on every rank if a value differs, with the value of each rank; or if
///             a rank has an error, with that error.
void agree(Communicator& world, const Settings& mine);

/// The arguments of this rank that must not differ from those of others. Files may have other names
/// on other machines.
Settings settings_of(const RunOptions& options);

}  // namespace penstock::cli
