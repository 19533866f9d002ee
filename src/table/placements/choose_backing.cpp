#include "table/placements/choose_backing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <utility>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"
#include "table/placements/placements_cuda.hpp"
#include "table/placements/shared_backing.hpp"
#include "table/sharing/backing_chain.hpp"
#include "table/sharing/huge_pages.hpp"

namespace penstock::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kProbeBytes = std::size_t{256} << 20;
constexpr double kGib = 1024.0 * 1024 * 1024;

bool is_read_by_gpu(Device device) {
  return build::has_cuda && device.kind == DeviceKind::Cuda;
}

std::string refusal_of_cumem(Device device) {
  if constexpr (build::has_cuda) {
    try {
      if (device.kind == DeviceKind::Cuda) return cumem_refusal(device);
    } catch (const Error& error) {  // a driver that lacks the calls
      return error.what();
    }
  }
  return {};
}

double rows_per_second(const SharedBacking& memory, Device device) {
  if constexpr (build::has_cuda) {
    if (device.kind == DeviceKind::Cuda) {
      return random_rows_per_second_cuda({memory.data(), kProbeBytes}, device);
    }
  }
  return 0;
}

/// Goes through what opening a table does, with a little memory.
BackingFigures probe(HostBacking backing, Device device, const StopFlag& stop) {
  const auto memory = make_shared_backing(backing, device, kProbeBytes);
  const auto start = Clock::now();
  memory->create();
  memory->reserve(stop);
  memory->map({}, stop);
  memory->seal();
  memory->pin(stop);
  const std::chrono::duration<double> time = Clock::now() - start;
  return {.backing = backing,
          .start_seconds_per_gib = time.count() * kGib / static_cast<double>(kProbeBytes),
          .rows_per_second = rows_per_second(*memory, device)};
}

/// Probes a backing that may be had and adds its figures. Says what came of it.
std::string try_out(const BackingCandidate& candidate, Device device, const StopFlag& stop,
                    std::vector<BackingFigures>& figures) {
  std::string why_not = candidate.refusal;
  try {
    if (why_not.empty()) {
      figures.push_back(probe(candidate.backing, device, stop));
      return describe(figures.back());
    }
  } catch (const Error& error) {
    why_not = error.what();
  }
  return fmt::format("no {}: {}", to_string(candidate.backing), why_not);
}

BackingChoice measure(const std::vector<BackingCandidate>& candidates, Device device,
                      const StopFlag& stop) {
  std::vector<BackingFigures> figures;
  std::vector<std::string> texts;
  for (const BackingCandidate& candidate : candidates) {
    texts.push_back(try_out(candidate, device, stop, figures));
    stop.check();
  }
  auto order = order_backings(figures);
  if (order.empty()) order = {HostBacking::Memfd};  // its error is the one to report
  return {.order = std::move(order),
          .reason = fmt::format("auto, probed with {} MiB: {}", kProbeBytes >> 20,
                                fmt::join(texts, "; "))};
}

}  // namespace

BackingChoice choose_backing(HostBacking asked, Device device, std::int64_t table_bytes,
                             const StopFlag& stop) {
  if (asked != HostBacking::Auto) return {.order = {asked}, .reason = "asked for"};
  if (table_bytes < kLeastBytesToChoose) {
    return {.order = {HostBacking::Memfd}, .reason = "auto, table below 256 MiB"};
  }
  const auto candidates = backing_candidates({.table_bytes = table_bytes,
                                              .is_read_by_gpu = is_read_by_gpu(device),
                                              .cumem_refusal = refusal_of_cumem(device),
                                              .free_huge_page_bytes = free_huge_page_bytes()});
  if (is_read_by_gpu(device)) return measure(candidates, device, stop);
  BackingChoice choice{.order = {}, .reason = "auto, not probed"};
  for (const auto& [backing, refusal] : candidates) {
    if (refusal.empty()) {
      choice.order.push_back(backing);
    } else if (backing == HostBacking::Hugetlb) {
      choice.reason += fmt::format("; no hugetlb: {}", refusal);
    }
  }
  return choice;
}

}  // namespace penstock::detail
