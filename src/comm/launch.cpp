#include "penstock/comm/launch.hpp"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "comm/launch_environment.hpp"
#include "core/environment.hpp"
#include "core/failure_point.hpp"
#include "penstock/comm/socket_group.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::EnvironmentLookup;

/// The variables of one launcher. Empty: it has none for that.
struct Launcher {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;      ///< Differs from job to job.
  const char* attempt;  ///< Differs between restarts of one job.
  const char* sign;     ///< Must be set too: the others alone can mean something else.
};

constexpr std::array kLaunchers = {
    Launcher{"penstock", "PENSTOCK_RANK", "PENSTOCK_SIZE", "PENSTOCK_LOCAL_RANK",
             "PENSTOCK_LOCAL_SIZE", "", "", "PENSTOCK_ADDRESS"},
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT",
             "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "",
             "OMPI_COMM_WORLD_SIZE"},
    Launcher{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "",
             "PMI_SIZE"},
    // A batch script has rank and size as well, but only what srun starts is a rank of a step.
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_JOB_ID",
             "SLURM_STEP_ID", "SLURM_STEP_ID"},
};

/// Reads variables of one environment.
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::string text(const std::string& name) const {
    return name.empty() ? std::string() : lookup_(name).value_or("");
  }

  int number(const std::string& name, int fallback) const {
    const std::string value = text(name);
    if (value.empty()) return fallback;
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    expects(error == std::errc() && end == value.data() + value.size() && result >= 0,
            fmt::format("{} is \"{}\", must be a number that is not negative", name, value));
    return result;
  }

 private:
  const EnvironmentLookup& lookup_;
};

/// How many ranks of the job are on this machine; 0 if that cannot be known.
int local_size(const Variables& variables, const Launcher& launcher, int size) {
  const int told = variables.number(launcher.local_size, 0);
  if (told > 0 || std::string_view(launcher.source) != "Slurm") return told;
  return variables.text("SLURM_STEP_NUM_NODES") == "1" ? size : 0;
}

std::string find_address(const Variables& variables, const Launcher& launcher,
                         const Launch& launch) {
  std::string given = variables.text("PENSTOCK_ADDRESS");
  if (!given.empty()) return given;
  const std::string job = variables.text(launcher.job);
  if (!job.empty() && launch.local_size == launch.size) {
    return fmt::format("unix:@penstock-{}-{}-{}", launcher.rank, job,
                       variables.text(launcher.attempt));
  }
  const std::string host = variables.text("MASTER_ADDR");
  if (std::string_view(launcher.source) != "torchrun" || host.empty() || job.empty()) return {};
  // torchrun's own store has MASTER_PORT.
  return fmt::format("{}:{}", host, variables.number("MASTER_PORT", 0) + 1);
}

}  // namespace

namespace detail {

std::optional<Launch> detect_launch_in(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  for (const Launcher& launcher : kLaunchers) {
    if (variables.text(launcher.rank).empty() || variables.text(launcher.size).empty() ||
        variables.text(launcher.sign).empty()) {
      continue;
    }
    Launch launch{.rank = variables.number(launcher.rank, 0),
                  .size = variables.number(launcher.size, 1),
                  .local_rank = 0,
                  .local_size = 0,
                  .address = {},
                  .source = launcher.source};
    expects(launch.rank < launch.size, fmt::format("{} is {}, must be below {} = {}", launcher.rank,
                                                   launch.rank, launcher.size, launch.size));
    launch.local_rank = variables.number(launcher.local_rank, 0);
    launch.local_size = local_size(variables, launcher, launch.size);
    launch.address = find_address(variables, launcher, launch);
    return launch;
  }
  return std::nullopt;
}

}  // namespace detail

std::optional<Launch> detect_launch() {
  return detail::detect_launch_in(environment_variable);
}

std::unique_ptr<Communicator> join_launch(const Launch& launch, const CommOptions& options) {
  if (launch.address.empty() && launch.size > 1) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("join_launch: {} names no address for its {} ranks; set "
                            "PENSTOCK_ADDRESS=host:port of rank 0, or use the mpi engine",
                            launch.source, launch.size));
  }
  detail::set_failure_rank(launch.rank, detail::RankKind::Process);
  detail::failure_point(detail::FailurePoint::StartLaunched);
  auto world = launch.size == 1
                   ? make_solo_communicator()
                   : join_socket_group(launch.rank, launch.size, launch.address, options);
  detail::failure_point(detail::FailurePoint::StartJoined);
  return world;
}

}  // namespace penstock
