#pragma once

#include <string>

#include "cli/run/run_options.hpp"

namespace penstock::cli {

/// What the command line of `penstock run` gives as text.
struct RunArguments {
  RunOptions options;
  std::string placement = "auto";
  std::string backing = "auto";
  std::string device = "cpu";
  std::string reader = "direct";
  std::string rows;
  double deadline_seconds = 60;
  bool is_json = false;
};

/// The options that they mean.
///
/// Errors: InvalidArgument, naming the argument, for what can be told without the model.
RunOptions check_arguments(const RunArguments& arguments);

}  // namespace penstock::cli
