#include "cli/run/report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>

namespace penstock::cli {
namespace {

using nlohmann::json;

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string rate_text(std::int64_t tokens, double seconds) {
  if (seconds <= 0) return "-";
  const double rate = static_cast<double>(tokens) / seconds;
  return rate >= 1e6 ? fmt::format("{:.2f} M", rate / 1e6) : fmt::format("{:.1f} k", rate / 1e3);
}

/// A time in a report; 0 where none was taken.
double seconds_of(const json& layer, const char* name) {
  return layer[name].is_null() ? 0.0 : layer[name].get<double>();
}

/// Why a backing was taken, behind its name.
std::string choice_text(const std::string& choice) {
  return choice.empty() ? "" : fmt::format(" ({})", choice);
}

/// What all ranks say of one layer, added up; times are those of the slowest rank.
struct LayerSummary {
  json first;
  int ranks = 0;
  std::int64_t tokens = 0;
  double hash = 0, read = 0, wait = 0, exchange = 0, project = 0, gate = 0;
  bool is_verified = false;
  bool is_right = true;
  std::int64_t ids = 0, rows = 0, tokens_checked = 0;

  void add(const json& rank, const json& layer) {
    if (ranks++ == 0) first = layer;
    tokens = std::max(tokens, layer["tokens"].get<std::int64_t>());
    hash = std::max(hash, rank["hash_seconds"].get<double>());
    read = std::max(read, seconds_of(layer, "read_seconds"));
    wait = std::max(wait, seconds_of(layer, "wait_seconds"));
    exchange = std::max(exchange, seconds_of(layer, "exchange_seconds"));
    project = std::max(project, seconds_of(layer, "project_seconds"));
    gate = std::max(gate, seconds_of(layer, "gate_seconds"));
    if (!layer.contains("verify")) return;
    const json& verify = layer["verify"];
    is_verified = true;
    is_right = is_right && verify["ok"].get<bool>();
    ids += verify["ids_checked"].get<std::int64_t>();
    rows += verify["rows_checked"].get<std::int64_t>();
    tokens_checked += verify["tokens_checked"].get<std::int64_t>();
  }

  std::string describe(int layer) const {
    std::string text = fmt::format(
        "layer {}: {} rows, {} a rank ({} shared), {} by {}\n", layer,
        first["rows"].get<std::int64_t>(), bytes_text(first["resident_bytes"].get<double>()),
        bytes_text(first["shared_bytes"].get<double>()), first["placement"].get<std::string>(),
        first["shard"].get<std::string>());
    text += fmt::format("  lives in {}{}\n", first["backing"].get<std::string>(),
                        choice_text(first["backing_choice"].get<std::string>()));
    if (!first["degraded"].get<std::string>().empty()) {
      text += fmt::format("  DEGRADED: {}\n", first["degraded"].get<std::string>());
    }
    text +=
        fmt::format("  tokens/s: hash {}, read {}, exchange {}, projection {}, gate {}\n",
                    rate_text(tokens, hash), rate_text(tokens, read), rate_text(tokens, exchange),
                    rate_text(tokens, project), rate_text(tokens, gate));
    text += read > 0
                ? fmt::format(
                      "  hidden share of the read: {:.1f} % ({:.2f} ms read, {:.2f} ms waited)\n",
                      std::clamp(100 * (1 - wait / read), 0.0, 100.0), 1e3 * read, 1e3 * wait)
                : std::string("  hidden share of the read: not measured\n");
    if (is_verified) {
      text +=
          fmt::format("  verify: {} ({} row-id sets, {} rows bit for bit, {} tokens in double)\n",
                      is_right ? "ok" : "FAILED", ids, rows, tokens_checked);
    }
    return text;
  }
};

/// A rank's part of a layer's table in host memory, where `sharers` ranks keep one copy.
double host_table_bytes(const json& layer, int sharers) {
  if (layer["placement"] != "host" && layer["placement"] != "host_shared") return 0;
  const bool is_shared = layer["shared_bytes"].get<std::int64_t>() > 0;
  return layer["resident_bytes"].get<double>() / (is_shared ? sharers : 1);
}

}  // namespace

NodeMemory add_up_memory(const json& report) {
  // Ranks that are threads measure the one process that they share.
  const bool shares_process = report["engine"] == "threads";
  NodeMemory memory;
  double tables = 0;
  for (const json& rank : report["ranks"]) {
    const auto mine = rank["memory_growth_bytes"].get<std::int64_t>();
    memory.growth_bytes =
        shares_process ? std::max(memory.growth_bytes, mine) : memory.growth_bytes + mine;
    for (const json& layer : rank["layers"]) {
      tables += host_table_bytes(layer, rank["sharers"].get<int>());
      memory.staging_bytes += layer["staging_bytes"].get<std::int64_t>();
    }
  }
  memory.table_bytes = std::llround(tables);
  return memory;
}

std::string describe_engram_run(const json& report) {
  std::map<int, LayerSummary> layers;
  for (const json& rank : report["ranks"]) {
    for (const json& layer : rank["layers"]) layers[layer["layer"].get<int>()].add(rank, layer);
  }
  const json& first = report["ranks"][0];
  std::string text =
      fmt::format("{} ranks ({}), {} steps, engine {}\n", report["ranks"].size(),
                  report["parallel"].get<std::string>(), first["steps"].get<std::int64_t>(),
                  report["engine"].get<std::string>());
  const NodeMemory memory = add_up_memory(report);
  text += fmt::format("host memory grew by {} over all ranks; {} of tables, {} of staging\n",
                      bytes_text(static_cast<double>(memory.growth_bytes)),
                      bytes_text(static_cast<double>(memory.table_bytes)),
                      bytes_text(static_cast<double>(memory.staging_bytes)));
  for (const auto& [layer, summary] : layers) text += summary.describe(layer);
  return text;
}

std::string describe_gate_run(const json& report) {
  const json& ranks = report["ranks"];
  std::string text = fmt::format(
      "{} ranks ({}), {} steps, engine {}\n", ranks.size(), report["parallel"].get<std::string>(),
      ranks[0]["steps"].get<std::int64_t>(), report["engine"].get<std::string>());
  for (std::size_t i = 0; i < ranks[0]["layers"].size(); ++i) {
    const json& first = ranks[0]["layers"][i];
    std::int64_t tokens = 0;
    std::int64_t rows = 0;
    double seconds = 0;
    bool is_right = true;
    for (const json& rank : ranks) {
      const json& layer = rank["layers"][i];
      tokens = std::max(tokens, layer["tokens"].get<std::int64_t>());
      seconds = std::max(seconds, layer["seconds"].get<double>());
      if (!layer.contains("verify")) continue;
      rows += layer["verify"]["rows_checked"].get<std::int64_t>();
      is_right = is_right && layer["verify"]["ok"].get<bool>();
    }
    text += fmt::format(
        "layer {}: [{}, {}] {}, {}, {} of {} a rank as {}, {} of workspace\n  tokens/s: {} a "
        "rank\n",
        first["layer"].get<int>(), first["shape"][0].get<std::int64_t>(),
        first["shape"][1].get<std::int64_t>(), first["gating"].get<std::string>(),
        first["strategy"].get<std::string>(), bytes_text(first["resident_bytes"].get<double>()),
        bytes_text(first["replicated_bytes"].get<double>()),
        first["resident_part"].get<std::string>(),
        bytes_text(first["peak_workspace_bytes"].get<double>()), rate_text(tokens, seconds));
    if (first.contains("verify")) {
      text += fmt::format("  verify: {} ({} rows)\n", is_right ? "ok" : "FAILED", rows);
    }
  }
  return text;
}

}  // namespace penstock::cli
