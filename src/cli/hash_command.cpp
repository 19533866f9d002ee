#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "cli/hash_batch.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/ngram_hasher.hpp"

namespace penstock::cli {
namespace {

struct HashOptions {
  std::string config;
  std::string batch;
  bool is_json = false;
};

/// Row ids of the batch, [tokens, layers, columns].
std::vector<std::int32_t> hash_requests(const NgramHasher& hasher,
                                        const std::vector<HashRequest>& requests) {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int32_t> lookback;
  for (const HashRequest& request : requests) {
    for (std::size_t i = 0; i < request.ids.size(); ++i) {
      positions.push_back(request.position + static_cast<std::int64_t>(i));
    }
    token_ids.insert(token_ids.end(), request.ids.begin(), request.ids.end());
    lookback.insert(lookback.end(), request.lookback.begin(), request.lookback.end());
    query_start.push_back(static_cast<std::int32_t>(token_ids.size()));
  }
  return hasher({token_ids, query_start, positions, lookback});
}

std::string as_json(const std::vector<std::int32_t>& rows, std::size_t layers,
                    std::size_t columns) {
  std::string text = "{\"rows\": [";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t in_token = i % (layers * columns);
    if (in_token == 0) {
      text += i == 0 ? "[[" : "]], [[";
    } else {
      text += in_token % columns == 0 ? "], [" : ", ";
    }
    fmt::format_to(std::back_inserter(text), "{}", rows[i]);
  }
  return text + (rows.empty() ? "]}\n" : "]]]}\n");
}

std::string as_text(const std::vector<std::int32_t>& rows, const std::vector<HashRequest>& requests,
                    const HashLayout& layout) {
  std::string text;
  auto row = rows.begin();
  for (std::size_t request = 0; request < requests.size(); ++request) {
    for (std::size_t i = 0; i < requests[request].ids.size(); ++i) {
      for (const int layer : layout.config.layer_ids) {
        fmt::format_to(std::back_inserter(text), "request {} position {} layer {}:", request,
                       requests[request].position + static_cast<std::int64_t>(i), layer);
        for (int column = 0; column < layout.num_columns(); ++column) {
          fmt::format_to(std::back_inserter(text), " {}", *row++);
        }
        text += '\n';
      }
    }
  }
  return text;
}

int hash(const HashOptions& options) {
  const ModelConfig model = load_model_config(options.config);
  if (!model.engram) {
    throw Error(ErrorCode::CorruptFile,
                options.config + ": found no engram_* keys, needed: those of a model with Engram");
  }
  const HashBatch batch = load_hash_batch(options.batch, model);
  const NgramHasher hasher(HashLayout(*model.engram), batch.token_map, batch.dead_token);
  const std::vector<std::int32_t> rows = hash_requests(hasher, batch.requests);
  const std::string text =
      options.is_json ? as_json(rows, static_cast<std::size_t>(hasher.layout().num_layers()),
                                static_cast<std::size_t>(hasher.layout().num_columns()))
                      : as_text(rows, batch.requests, hasher.layout());
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

}  // namespace

void add_hash_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<HashOptions>();
  CLI::App* command = app.add_subcommand("hash", "Print the row ids of a batch of tokens");
  command->add_option("config", options->config, "A config.json with engram_* keys")->required();
  command
      ->add_option("--batch", options->batch,
                   "Requests, token map and dead token (JSON); a path in it is relative to it")
      ->required();
  command->add_flag("--json", options->is_json, "Answer in JSON: {\"rows\": [T][L][C]}");
  command->footer(
      "docs/formats/batch.md describes the batch.\n"
      "Example: penstock hash demo/config.json --batch examples/batch.json --json");
  command->callback([options, &action] { action = [options] { return hash(*options); }; });
}

}  // namespace penstock::cli
