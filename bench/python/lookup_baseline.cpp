// The C++ call that Table.lookup of one token ends in, timed alone, for lookup_overhead.py.
//
//   lookup_baseline MODEL_DIR LAYER TOKENS REPEAT
//
// Prints the median over batches of 100 calls in microseconds.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

#include "penstock/penstock.hpp"

namespace {

using namespace penstock;  // NOLINT(google-build-using-namespace)

constexpr int kBatch = 100;

double microseconds_of(const Table& table, std::int64_t tokens, int repeat) {
  const auto columns = static_cast<std::int64_t>(table.spec().head_sizes.size());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * columns));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<BF16> rows(ids.size() * static_cast<std::size_t>(table.spec().head_dim));
  std::vector<double> batches;
  for (int i = 0; i < repeat; i += kBatch) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kBatch; ++call) {
      gather_rows(table.view(), {ids.data(), tokens, static_cast<int>(columns), columns},
                  RowFormat::Bf16, std::as_writable_bytes(std::span(rows)), table.device());
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    batches.push_back(time.count() / kBatch);
  }
  std::nth_element(batches.begin(),
                   batches.begin() + static_cast<std::ptrdiff_t>(batches.size() / 2),
                   batches.end());
  return batches[batches.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  if (arguments.size() != 5) {
    std::fputs("usage: lookup_baseline MODEL_DIR LAYER TOKENS REPEAT\n", stderr);
    return 2;
  }
  try {
    const ModelDir model = ModelDir::open(arguments[1]);
    const int layer = std::atoi(arguments[2]);
    const Table table =
        Table::open(engram_table_spec(model.config(), layer), open_checkpoint_rows(model, layer),
                    {.placement = Placement::Host});
    std::printf("%.3f\n", microseconds_of(table, std::atoi(arguments[3]), std::atoi(arguments[4])));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "lookup_baseline: %s\n", error.what());
    return 1;
  }
}
