#include "penstock/checkpoint/synthetic_model.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <system_error>
#include <utility>

#include "checkpoint/output_file.hpp"
#include "checkpoint/synthetic_config.hpp"
#include "checkpoint/synthetic_tensors.hpp"
#include "checkpoint/tensor_bytes.hpp"
#include "checkpoint/text_file.hpp"
#include "checkpoint/tokenizer_json.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock {
namespace {

namespace fs = std::filesystem;

struct FamilyName {
  ModelFamily family;
  std::string_view name;
};

constexpr std::array kFamilies{
    FamilyName{ModelFamily::DeepSeekV41Flash, "deepseek-v4.1-flash"},
    FamilyName{ModelFamily::HyV4, "hy-v4"},
    FamilyName{ModelFamily::HyV4Preview, "hy-v4-preview"},
};

/// Counts bytes for the caller's progress.
class Meter {
 public:
  Meter(std::uint64_t total_bytes, const std::function<void(const SyntheticModelProgress&)>& report)
      : total_bytes_(total_bytes),
        report_(report) {}

  void add(const std::string& file, std::uint64_t bytes) {
    done_bytes_ += bytes;
    if (report_) report_({file, done_bytes_, total_bytes_});
  }

 private:
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  const std::function<void(const SyntheticModelProgress&)>& report_;
};

/// Removes what was written so far, unless the model was completed.
class Cleanup {
 public:
  explicit Cleanup(const fs::path& directory)
      : directory_(directory),
        is_new_(fs::create_directories(directory)) {}
  ~Cleanup() {
    if (is_complete_) return;
    std::error_code ignored;
    for (const auto& name : files_) fs::remove(directory_ / name, ignored);
    if (is_new_) fs::remove(directory_, ignored);
  }
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;

  void add(std::string name) { files_.push_back(std::move(name)); }

  std::vector<std::string> complete() {
    is_complete_ = true;
    return files_;
  }

 private:
  fs::path directory_;
  bool is_new_;
  bool is_complete_ = false;
  std::vector<std::string> files_;
};

std::uint64_t bytes_of(const TensorInfo& info) {
  return detail::tensor_bytes(info.dtype, info.shape).value();
}

std::uint64_t total_bytes(const std::vector<detail::SyntheticFile>& files, bool with_tables) {
  std::uint64_t bytes = 0;
  for (const auto& file : files) {
    for (const auto& tensor : file.tensors) {
      if (with_tables || !tensor.is_table) bytes += bytes_of(tensor.info);
    }
  }
  return bytes;
}

void check_directory(const fs::path& directory) {
  if (!fs::exists(directory)) return;
  expects(fs::is_directory(directory),
          fmt::format("make_synthetic_model: {} is not a directory", directory.string()));
  const fs::directory_iterator entries(directory);
  expects(
      entries == fs::directory_iterator(),
      fmt::format("make_synthetic_model: {} holds {} already, needed a new or empty directory",
                  directory.string(),
                  entries == fs::directory_iterator() ? "" : entries->path().filename().string()));
}

void check_room(const fs::path& directory, std::uint64_t bytes) {
  const std::uint64_t available = fs::space(directory).available;
  if (bytes <= available) return;
  throw Error(ErrorCode::System,
              fmt::format("make_synthetic_model: {} has room for {} bytes, needed {}",
                          directory.string(), available, bytes));
}

void write_tensor(SafetensorsWriter& writer, const detail::SyntheticTensor& tensor,
                  const std::string& file, Meter& meter) {
  // Large enough to keep all threads busy, small enough for any machine.
  constexpr std::int64_t kBlockBytes = 8 << 20;
  constexpr std::int64_t kGrainBytes = 64 << 10;
  const std::int64_t rows = tensor.info.shape.at(0);
  const std::int64_t row_bytes = static_cast<std::int64_t>(bytes_of(tensor.info)) / rows;
  const std::int64_t block_rows = std::clamp<std::int64_t>(kBlockBytes / row_bytes, 1, rows);
  std::vector<std::byte> block(static_cast<std::size_t>(block_rows * row_bytes));
  for (std::int64_t first = 0; first < rows; first += block_rows) {
    const std::int64_t count = std::min(block_rows, rows - first);
    parallel_for(count, kGrainBytes / row_bytes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        tensor.fill_row(first + i, std::span(block).subspan(static_cast<std::size_t>(i * row_bytes),
                                                            static_cast<std::size_t>(row_bytes)));
      }
    });
    const auto bytes = static_cast<std::size_t>(count * row_bytes);
    writer.append(std::span(block).first(bytes));
    meter.add(file, bytes);
  }
}

void write_tensors(const fs::path& directory, const detail::SyntheticFile& file, bool use_holes,
                   Meter& meter) {
  std::vector<TensorInfo> infos;
  for (const auto& tensor : file.tensors) infos.push_back(tensor.info);
  SafetensorsWriter writer(directory / file.name, infos, {{"format", "pt"}});
  for (const auto& tensor : file.tensors) {
    if (use_holes && tensor.is_table) {
      writer.append_hole(bytes_of(tensor.info));
      meter.add(file.name, bytes_of(tensor.info));
    } else {
      write_tensor(writer, tensor, file.name, meter);
    }
  }
  writer.finish();
}

std::string index_text(const std::vector<detail::SyntheticFile>& files) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& file : files) {
    for (const auto& tensor : file.tensors) map[tensor.info.name] = file.name;
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total_bytes(files, true)}}},
                                     {"weight_map", std::move(map)}};
  return index.dump(2) + "\n";
}

/// The text of a tokenizer.json that can be read; empty without a file.
detail::TextFile open_tokenizer(const fs::path& file) {
  if (file.empty()) return {};
  auto text = detail::TextFile::open(file);
  detail::parse_tokenizer(text.text(), file.string());
  return text;
}

void write_text(const fs::path& file, std::string_view text) {
  detail::OutputFile output(file);
  output.write(text);
  output.finish();
}

}  // namespace

std::string_view to_string(ModelFamily family) {
  for (const auto& row : kFamilies) {
    if (row.family == family) return row.name;
  }
  throw Error(ErrorCode::Internal, "to_string: not a ModelFamily");
}

std::optional<ModelFamily> parse_model_family(std::string_view name) {
  for (const auto& row : kFamilies) {
    if (row.name == name) return row.family;
  }
  return std::nullopt;
}

SyntheticModelOptions released_model_options(ModelFamily family) {
  SyntheticModelOptions options;
  options.family = family;
  const auto set_gates = [&options](std::int64_t hidden, int heads, int layers) {
    options.hidden_size = hidden;
    options.num_attention_heads = heads;
    options.num_hidden_layers = layers;
    options.layers.resize(static_cast<std::size_t>(layers));
    std::iota(options.layers.begin(), options.layers.end(), 0);
    options.num_draft_gates = 1;
  };
  switch (family) {
    case ModelFamily::DeepSeekV41Flash:
      options.hidden_size = 5120;
      options.engram_vocab_size = 16'000'000;
      return options;
    case ModelFamily::HyV4: set_gates(2816, 32, 34); return options;
    case ModelFamily::HyV4Preview: set_gates(6144, 64, 78); return options;
  }
  throw Error(ErrorCode::Internal, "released_model_options: not a ModelFamily");
}

SyntheticModelOptions demo_model_options(ModelFamily family) {
  if (family == ModelFamily::DeepSeekV41Flash) return {};
  SyntheticModelOptions options = released_model_options(family);
  options.layers = {0, 1};
  options.num_hidden_layers = 2;
  options.num_draft_gates = 0;
  return options;
}

SyntheticModelSummary make_synthetic_model(
    const fs::path& directory, const SyntheticModelOptions& options,
    const std::function<void(const SyntheticModelProgress&)>& progress) {
  const std::string config = detail::synthetic_config(options);
  const auto files =
      detail::synthetic_files(options, parse_model_config(config, "make_synthetic_model"));
  const detail::TextFile tokenizer = open_tokenizer(options.tokenizer);
  check_directory(directory);
  Cleanup cleanup(directory);
  check_room(directory, total_bytes(files, !options.use_holes));

  if (!options.tokenizer.empty()) {
    cleanup.add("tokenizer.json");
    write_text(directory / "tokenizer.json", tokenizer.text());
  }
  Meter meter(total_bytes(files, true), progress);
  for (const auto& file : files) {
    cleanup.add(file.name);
    write_tensors(directory, file, options.use_holes, meter);
  }
  if (options.use_shards) {
    cleanup.add("model.safetensors.index.json");
    write_text(directory / "model.safetensors.index.json", index_text(files));
  }
  cleanup.add("config.json");
  write_text(directory / "config.json", config);
  return {cleanup.complete(), total_bytes(files, true)};
}

}  // namespace penstock
