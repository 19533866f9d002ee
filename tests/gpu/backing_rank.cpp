#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "gpu/record_check.hpp"
#include "penstock/comm/socket_group.hpp"
#include "penstock/core/error.hpp"
#include "penstock/table/table.hpp"
#include "table/sharing/fault_injection.hpp"

// A process that opens a shared table on a GPU; a program of its own, so that it may end in the middle
// of its life or lose its GPU.
//
//   backing_rank RANK SIZE ADDRESS BACKING WHAT
//
// WHAT is what it does once the table is open, or the stage at whose start it kills itself:
//   leave    kills itself
//   outlive  waits until another rank is gone, then reads every row: "right" or "wrong"
//   write    tries to write to it: "host kept|changed device kept|changed <backing>"
// On an error it prints "error <code> <message>".
namespace penstock {
namespace {

constexpr std::int64_t kRows = 40'000;

/// Lets the kernel write one byte: where a store would be a signal, this is an error.
void write_by_host(std::byte* to, std::byte value) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0 || ::write(ends[1], &value, 1) != 1) return;
  [[maybe_unused]] const auto taken = ::read(ends[0], to, 1);
  ::close(ends[0]);
  ::close(ends[1]);
}

/// May leave the GPU unusable for this process.
void write_by_device(std::byte* to, std::byte value) {
  static_cast<void>(cudaMemset(to, std::to_integer<int>(value), 1));
  static_cast<void>(cudaDeviceSynchronize());
}

std::string try_to_write(const Table& table, const RowSource& rows) {
  std::vector<std::byte> expected(static_cast<std::size_t>(row_record_bytes(rows.head_dim())));
  rows.read(0, expected);
  // The GPU addresses this memory as the host does.
  auto* first = const_cast<std::byte*>(table.view().values[0]);
  const volatile std::byte* seen = first;
  const auto change_by = [&](auto write, std::byte* at, std::byte before) {
    write(at, ~before);
    return seen[at - first] == before ? "kept" : "changed";
  };
  const std::string host = change_by(write_by_host, first, expected[0]);
  const std::string device = change_by(write_by_device, first + 1, expected[1]);
  return "host " + host + " device " + device + " " + table.status().backing;
}

std::string wait_and_read(Communicator& comm, const Table& table, const RowSource& rows) {
  try {
    for (;;) comm.barrier();
  } catch (const Error&) {  // the other rank is gone
    return gpu::reads_right(table, rows, 0, kRows) ? "right" : "wrong";
  }
}

std::string run(const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(0));
  const CommOptions options{.deadline = std::chrono::seconds(30)};
  const auto comm = join_socket_group(rank, std::stoi(arguments.at(1)), arguments.at(2), options);
  const std::string& what = arguments.at(4);
  detail::set_fault_hook([&](int, detail::Stage stage) {
    if (to_string(stage) == what) ::kill(::getpid(), SIGKILL);
  });
  const auto rows = make_random_rows(1, 1, kRows, 256);
  const Table table = Table::open(gpu::one_column(*rows), rows,
                                  {.placement = Placement::HostShared,
                                   .device = Device::cuda(rank % std::max(1, cuda_device_count())),
                                   .group = comm.get(),
                                   .backing = parse_host_backing(arguments.at(3)).value()});
  if (what == "leave") ::kill(::getpid(), SIGKILL);
  return what == "write" ? try_to_write(table, *rows) : wait_and_read(*comm, table, *rows);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    std::cout << penstock::run({argv + 1, argv + argc}) << std::endl;
  } catch (const penstock::Error& error) {
    std::cout << "error " << to_string(error.code()) << " " << error.what() << std::endl;
  }
  return 0;
}
