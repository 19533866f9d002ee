#include "penstock/checkpoint/model_dir.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <utility>

#include "checkpoint/mapped_file.hpp"
#include "checkpoint/strict_json.hpp"
#include "checkpoint/weight_index.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace

struct ModelDir::State {
  std::filesystem::path path;
  ModelConfig config;
  bool is_sharded = false;
  std::map<std::string, std::string, std::less<>> file_of_tensor;  ///< Of a sharded model.

  std::mutex mutex;  ///< Guards files.
  std::map<std::string, std::unique_ptr<const SafetensorsFile>, std::less<>> files;

  /// Maps the file on first use.
  const SafetensorsFile& file(const std::string& name) {
    const std::lock_guard lock(mutex);
    auto& slot = files[name];
    if (!slot) slot = std::make_unique<const SafetensorsFile>(SafetensorsFile::open(path / name));
    return *slot;
  }

  const SafetensorsFile& shard_of(const std::pair<const std::string, std::string>& entry) {
    try {
      return file(entry.second);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::NotFound) throw;
      throw Error(ErrorCode::NotFound, fmt::format("{}, needed for tensor {}", error.what(),
                                                   detail::in_quotes(entry.first)));
    }
  }

  bool has_single_file() const { return std::filesystem::exists(path / kSingleFile); }

  std::optional<TensorRef> find_in_single_file(std::string_view name) {
    if (!has_single_file()) return std::nullopt;
    const SafetensorsFile& opened = file(kSingleFile);
    const TensorInfo* info = opened.find(name);
    if (info == nullptr) return std::nullopt;
    return TensorRef{*info, opened.bytes(*info), opened.path()};
  }

  std::optional<TensorRef> find_in_shards(std::string_view name) {
    const auto entry = file_of_tensor.find(name);
    if (entry == file_of_tensor.end()) return std::nullopt;
    const SafetensorsFile& opened = shard_of(*entry);
    const TensorInfo* info = opened.find(name);
    if (info == nullptr) {
      detail::throw_corrupt(
          opened.path().string(),
          fmt::format("no tensor {}, which {} says is here", detail::in_quotes(name), kIndexFile));
    }
    return TensorRef{*info, opened.bytes(*info), opened.path()};
  }
};

ModelDir ModelDir::open(const std::filesystem::path& directory) {
  auto state = std::make_shared<State>();
  state->path = directory;
  if (!std::filesystem::is_directory(directory)) {
    throw Error(ErrorCode::NotFound,
                fmt::format("{}: not a directory, needed: a model directory with config.json",
                            directory.string()));
  }
  state->config = load_model_config(directory / kConfigFile);
  // An index is what the directory declares; a single file beside it may be a leftover.
  const auto index_file = directory / kIndexFile;
  state->is_sharded = std::filesystem::exists(index_file);
  if (state->is_sharded) {
    const auto mapped = detail::MappedFile::open(index_file);
    state->file_of_tensor = detail::parse_weight_index(mapped.text(), index_file.string());
  }
  return ModelDir(std::move(state));
}

ModelDir::ModelDir(std::shared_ptr<State> state) : state_(std::move(state)) {}

const std::filesystem::path& ModelDir::path() const {
  return state_->path;
}

const ModelConfig& ModelDir::config() const {
  return state_->config;
}

std::optional<TensorRef> ModelDir::find(std::string_view name) const {
  return state_->is_sharded ? state_->find_in_shards(name) : state_->find_in_single_file(name);
}

std::optional<TensorRef> ModelDir::find(std::span<const std::string> names) const {
  for (const auto& name : names) {
    if (auto found = find(std::string_view(name))) return found;
  }
  return std::nullopt;
}

TensorRef ModelDir::require(std::span<const std::string> names) const {
  if (auto found = find(names)) return *std::move(found);
  if (!state_->is_sharded && !state_->has_single_file()) {
    throw Error(ErrorCode::NotFound,
                fmt::format("{}: neither {} nor {}, needed: tensor {}", path().string(),
                            kSingleFile, kIndexFile, names.empty() ? "" : names.front()));
  }
  throw Error(ErrorCode::NotFound,
              fmt::format("{}: found none of the tensors {}, needed: one of them", path().string(),
                          fmt::join(names, ", ")));
}

std::vector<std::string> ModelDir::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : state_->file_of_tensor) names.push_back(name);
  if (!state_->is_sharded && state_->has_single_file()) {
    for (const auto& tensor : state_->file(kSingleFile).tensors()) names.push_back(tensor.name);
    std::ranges::sort(names);
  }
  return names;
}

std::map<std::string, std::vector<std::string>> ModelDir::declared_files() const {
  std::map<std::string, std::vector<std::string>> names_of_file;
  for (const auto& [name, file] : state_->file_of_tensor) names_of_file[file].push_back(name);
  if (!state_->is_sharded && state_->has_single_file()) names_of_file[kSingleFile] = tensor_names();
  return names_of_file;
}

}  // namespace penstock
