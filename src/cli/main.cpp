#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "penstock/core/version.hpp"

namespace penstock::cli {
namespace {

int report(const std::string& message, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "penstock: error: %s\n", message.c_str());
  return code;
}

void print_warning(LogLevel level, std::string_view message) {
  if (level != LogLevel::Warning) return;
  std::fprintf(stderr, "penstock: warning: %.*s\n", static_cast<int>(message.size()),
               message.data());
}

/// Fills the places of standard descriptors that are closed, so that no file of ours lands there and
/// takes what is printed. Writing to them fails as before.
void occupy_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDONLY));
  }
}

/// A reader that has gone and a file that may not grow are errors of a write, not the end of the
/// process: what it has begun is taken back, and it says why.
void prefer_errors_to_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// A result that could not be written is no success.
int check_output(int code) {
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || code != kExitOk) return code;
  return report(
      std::string("cannot write to the standard output: ") + std::system_category().message(errno),
      kExitEnvironment);
}

/// "penstock bench gate": the subcommand that the command line has named, as far as it got.
std::string name_of_parsed(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* parsed : app.get_subcommands()) name += " " + name_of_parsed(*parsed);
  return name;
}

int run(int argc, char** argv) {
  occupy_standard_descriptors();
  prefer_errors_to_signals();
  set_log_sink(print_warning);
  CLI::App app{"Feeds GPUs the weights that are too big for each of them to hold."};
  app.name("penstock");
  app.set_version_flag("--version", build_description());
  app.require_subcommand(1);

  Action action;
  add_make_model_command(app, action);
  add_inspect_command(app, action);
  add_run_command(app, {argv, argv + argc}, action);
  add_hash_command(app, action);
  add_check_command(app, action);
  add_bench_command(app, action);
  // After them: commands added later would take it over.
  app.footer(
      "Results go to stdout, messages to stderr. Exit codes: 0 ok, 2 usage, 3 bad input,\n"
      "4 environment or a failed peer, 5 verification failed or a rule violated, 70 internal.\n"
      "penstock SUBCOMMAND --help tells the rest.");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(fmt::format("{} (see {} --help)", error.what(), name_of_parsed(app)), kExitUsage);
  }
  return check_output(action());
}

}  // namespace
}  // namespace penstock::cli

int main(int argc, char** argv) {
  using namespace penstock;  // NOLINT(google-build-using-namespace): four names below
  try {
    return cli::run(argc, argv);
  } catch (const Error& error) {
    return cli::report(error.what(), cli::exit_code(error.code()));
  } catch (const std::bad_alloc&) {
    return cli::report("out of host memory", cli::kExitEnvironment);
  } catch (const std::system_error& error) {
    return cli::report(std::string("the system refused: ") + error.what(), cli::kExitEnvironment);
  } catch (const std::exception& error) {
    return cli::report(std::string("internal: ") + error.what(), cli::kExitInternal);
  }
}
