#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/socket_group.hpp"
#include "penstock/core/error.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table.hpp"
#include "table/sharing/fault_injection.hpp"

// One rank of a group of processes that share a table of random rows; a program of its own, so that
// tests can kill it and weigh its memory.
//
//   table_rank RANK SIZE ADDRESS ROWS STAGE BACKING [PROCS]
//
// Enters the control group whose list of processes is the file PROCS. Kills itself at the start of
// STAGE ("none": never). Otherwise prints one line, "ok <growth of PSS in bytes>
// <checksum of the rows>" or "error <code> <message>", and ends when its standard input does.
namespace penstock {
namespace {

constexpr int kHeadDim = 256;

/// This process's memory, shared pages divided by the number of processes that map them.
std::int64_t pss_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string word;
  std::int64_t kib = 0;
  while (rollup >> word) {
    if (word == "Pss:" && rollup >> kib) return kib * 1024;
  }
  return 0;
}

std::uint64_t checksum(const TableView& view) {
  std::uint64_t hash = 14695981039346656037ULL;
  const std::int64_t words = (view.row_end - view.row_begin) * (view.value_stride / 8);
  for (std::int64_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, view.values[0] + 8 * i, sizeof(word));
    hash = (hash ^ word) * 1099511628211ULL;
  }
  return hash;
}

std::optional<detail::Stage> parse_stage(const std::string& word) {
  for (const auto stage :
       {detail::Stage::Agree, detail::Stage::Create, detail::Stage::Reserve, detail::Stage::Map,
        detail::Stage::Load, detail::Stage::Seal, detail::Stage::Pin}) {
    if (to_string(stage) == word) return stage;
  }
  return std::nullopt;
}

std::string open_and_weigh(Communicator& comm, std::int64_t rows, HostBacking backing,
                           std::optional<Table>& table) {
  const TableSpec spec{.layer_id = 1, .head_sizes = {rows}, .num_rows = rows, .head_dim = kHeadDim};
  const std::int64_t before = pss_bytes();
  table = Table::open(spec, make_random_rows(1, 1, rows, kHeadDim),
                      {.placement = Placement::HostShared, .group = &comm, .backing = backing});
  const std::uint64_t sum = checksum(table->view());
  comm.barrier();  // every process has touched every page
  const std::int64_t growth = pss_bytes() - before;
  comm.barrier();  // and none has left yet
  return "ok " + std::to_string(growth) + " " + std::to_string(sum);
}

int run(const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(0));
  const int size = std::stoi(arguments.at(1));
  if (arguments.size() > 6) std::ofstream(arguments[6]) << ::getpid() << std::flush;
  detail::set_fault_hook([stage = parse_stage(arguments.at(4))](int, detail::Stage at) {
    if (at == stage) ::kill(::getpid(), SIGKILL);
  });
  const HostBacking backing = parse_host_backing(arguments.at(5)).value();
  const CommOptions options{.deadline = std::chrono::seconds(20)};
  const auto comm = join_socket_group(rank, size, arguments.at(2), options);
  std::optional<Table> table;
  try {
    std::cout << open_and_weigh(*comm, std::stoll(arguments.at(3)), backing, table) << std::endl;
  } catch (const Error& error) {
    std::cout << "error " << to_string(error.code()) << " " << error.what() << std::endl;
  }
  std::string rest;
  while (std::getline(std::cin, rest)) {
  }
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  return penstock::run({argv + 1, argv + argc});
}
