#include "penstock/core/version.hpp"

#include "core/build_config.hpp"

namespace penstock {

std::string_view version() {
  return build::kVersion;
}

std::string build_description() {
  const auto word = [](bool is_present) { return is_present ? "yes" : "no"; };
  std::string text = "penstock " + std::string(build::kVersion);
  text += " (cuda: " + std::string(word(build::has_cuda));
  text += ", nccl: " + std::string(word(build::has_nccl));
  text += ", mpi: " + std::string(word(build::has_mpi));
  text += ", onednn: " + std::string(word(build::has_onednn)) + ")";
  return text;
}

}  // namespace penstock
