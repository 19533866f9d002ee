#include "table/sharing/backing_chain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "table/sharing/fd_handover.hpp"

namespace penstock::detail {
namespace {

// Repeated probes of one backing differ by less.
constexpr double kClearlyFaster = 1.10;

bool is_as_fast(const BackingFigures& figures, double fastest) {
  return figures.rows_per_second * kClearlyFaster >= fastest;
}

std::string hugetlb_refusal(const BackingFacts& facts) {
  if (facts.free_huge_page_bytes >= facts.table_bytes) return {};
  return fmt::format("{} MiB of huge pages are free", facts.free_huge_page_bytes >> 20);
}

}  // namespace

std::vector<BackingCandidate> backing_candidates(const BackingFacts& facts) {
  const std::string on_cpu = facts.is_read_by_gpu ? "" : "no GPU reads the table";
  return {{HostBacking::CuMem, on_cpu.empty() ? facts.cumem_refusal : on_cpu},
          {HostBacking::Hugetlb, hugetlb_refusal(facts)},
          {HostBacking::Memfd, ""}};
}

std::vector<HostBacking> order_backings(std::span<const BackingFigures> figures) {
  std::vector<BackingFigures> left(figures.begin(), figures.end());
  std::vector<HostBacking> order;
  while (!left.empty()) {
    const double fastest =
        std::ranges::max(left, {}, &BackingFigures::rows_per_second).rows_per_second;
    // The first of equals: min_element keeps the order of the chain.
    const auto best = std::ranges::min_element(left, {}, [&](const BackingFigures& each) {
      return is_as_fast(each, fastest) ? each.start_seconds_per_gib
                                       : std::numeric_limits<double>::infinity();
    });
    order.push_back(best->backing);
    left.erase(best);
  }
  return order;
}

std::string describe(const BackingFigures& figures) {
  std::string text =
      fmt::format("{} {:.2f} s/GiB", to_string(figures.backing), figures.start_seconds_per_gib);
  if (figures.rows_per_second > 0) {
    text += fmt::format(", {:.1f} M rows/s", figures.rows_per_second / 1e6);
  }
  return text;
}

std::size_t piece_bytes(std::size_t total_bytes) {
  std::size_t bytes = std::size_t{2} << 30;  // half a second of the driver's time
  while ((total_bytes + bytes - 1) / bytes > kMaxFdsOfMessage) bytes *= 2;
  return bytes;
}

}  // namespace penstock::detail
