#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "penstock/checkpoint/model_config.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/hash_layout.hpp"
#include "penstock/engram/ngram_hasher.hpp"
#include "penstock/engram/ngram_hasher_cuda.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock::python {
namespace {

// Copies the engram_* keys of `from` into `to`.
void pick_engram_keys(const nb::dict& from, nb::dict& to) {
  for (const auto& [key, value] : from) {
    if (nb::isinstance<nb::str>(key) && nb::cast<std::string>(key).starts_with("engram_")) {
      to[key] = value;
    }
  }
}

// Other keys of a framework's config may hold what JSON cannot, and do not matter here.
EngramConfig engram_config_of(const nb::dict& config) {
  nb::dict keys;
  if (config.contains("text_config")) {
    nb::dict nested;
    pick_engram_keys(nb::cast<nb::dict>(config["text_config"]), nested);
    keys["text_config"] = nested;
  }
  pick_engram_keys(config, keys);
  const nb::object text = nb::module_::import_("json").attr("dumps")(
      keys, nb::arg("default") = nb::module_::import_("operator").attr("index"));
  try {
    const ModelConfig parsed = parse_model_config(nb::cast<std::string>(text), "config");
    expects(parsed.engram.has_value(),
            "config: found no engram_layer_ids, needs the engram_* keys of config.json");
    return *parsed.engram;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::CorruptFile) throw;
    throw Error(ErrorCode::InvalidArgument, error.what());  // an argument, not a file
  }
}

std::optional<std::int32_t> dead_token(std::optional<std::int64_t> id) {
  if (!id) return std::nullopt;
  expects(std::in_range<std::int32_t>(*id),
          "dead_token_id: found " + std::to_string(*id) + ", needs a value that fits int32");
  return static_cast<std::int32_t>(*id);
}

// A hasher and its copies on the devices that have asked for one.
struct Hasher {
  NgramHasher host;
  std::map<int, NgramHasherCuda> on_device = {};

  // With the GIL, so that two threads never make the same copy.
  const NgramHasherCuda& on(Device device) {
    const auto found = on_device.find(device.index);
    if (found != on_device.end()) return found->second;
    return on_device.emplace(device.index, NgramHasherCuda(host, device)).first->second;
  }
};

// The arguments of a step; shapes are checked, types are not.
struct StepArrays {
  StepArrays(const HashLayout& layout, nb::handle token_ids_in, nb::handle query_start_in,
             nb::handle positions_in, nb::handle lookback_in)
      : token_ids(token_ids_in, "token_ids"),
        query_start(query_start_in, "query_start"),
        positions(positions_in, "positions"),
        lookback(lookback_in, "lookback") {
    token_ids.expect_shape({-1});
    query_start.expect_shape({-1});
    positions.expect_shape({tokens()});
    lookback.expect_shape({query_start.size() - 1, layout.config.lookback_depth()});
  }

  std::int64_t tokens() const { return token_ids.size(); }

  Array token_ids;
  Array query_start;
  Array positions;
  Array lookback;
};

void hash_on_cpu(const NgramHasher& hasher, const StepArrays& step, std::span<std::int32_t> out) {
  const Integers<std::int32_t> ids(step.token_ids);
  const Integers<std::int32_t> starts(step.query_start);
  const Integers<std::int64_t> positions(step.positions);
  const Integers<std::int32_t> lookback(step.lookback);
  const nb::gil_scoped_release release;
  hasher.hash({ids.values(), starts.values(), positions.values(), lookback.values()}, out);
}

void hash_on_cuda(const NgramHasherCuda& hasher, const StepArrays& step,
                  std::span<std::int32_t> out) {
  const Device device = step.token_ids.device();
  for (const Array* array : {&step.query_start, &step.positions, &step.lookback}) {
    array->expect_device(device);
  }
  const Array ids = int32_on_device(step.token_ids).contiguous();
  const Array starts = int32_on_device(step.query_start).contiguous();
  const Array positions = int64_on_device(step.positions).contiguous();
  const Array lookback = int32_on_device(step.lookback).contiguous();
  DeviceTokenBatch batch;
  batch.token_ids = reinterpret_cast<const std::int32_t*>(ids.data());
  batch.query_start = reinterpret_cast<const std::int32_t*>(starts.data());
  batch.positions = reinterpret_cast<const std::int64_t*>(positions.data());
  batch.lookback = reinterpret_cast<const std::int32_t*>(lookback.data());
  batch.tokens = step.tokens();
  batch.requests = starts.size() - 1;
  hasher.hash(batch, out, step.token_ids.stream());
}

nb::object hash(Hasher& self, nb::handle token_ids, nb::handle query_start, nb::handle positions,
                nb::handle lookback) {
  const HashLayout& layout = self.host.layout();
  const StepArrays step(layout, token_ids, query_start, positions, lookback);
  const std::array<std::int64_t, 3> shape{step.tokens(), layout.num_layers(), layout.num_columns()};
  Output out(step.token_ids, shape, Output::Type::I32);
  const Device device = step.token_ids.device();
  if (device == Device::cpu()) {
    hash_on_cpu(self.host, step, out.int32());
  } else {
    hash_on_cuda(self.on(device), step, out.int32());
  }
  return out.release();
}

TokenMap token_map_of(nb::handle ids) {
  const Array array(ids, "ids");
  array.expect_shape({-1});
  const Integers<std::int32_t> values(array);
  return TokenMap(std::vector<std::int32_t>(values.values().begin(), values.values().end()));
}

void bind_hash_layout(nb::module_& m) {
  nb::class_<HashLayout>(m, "HashLayout",
                         R"(The numbers of the n-gram hash: all that follows from a configuration.

Args:
    config: a dict with the engram_* keys of config.json, at the top level or under
        "text_config".

Raises:
    InvalidArgument: naming the key, for a missing or impossible value.)")
      .def(
          "__init__",
          [](HashLayout* self, const nb::dict& config) {
            new (self) HashLayout(engram_config_of(config));
          },
          nb::arg("config"), nb::sig("def __init__(self, config: dict[str, typing.Any]) -> None"))
      .def_ro(
          "primes", &HashLayout::primes,
          "Rows of each column: [layers][columns], order-major (column (n - 2) * heads + head).")
      .def_ro("offsets", &HashLayout::offsets, "First row id of each column: [layers][columns].")
      .def_ro("multipliers", &HashLayout::multipliers, "Odd multipliers: [layers][N].")
      .def_ro("row_counts", &HashLayout::row_counts, "Rows of each layer's table: [layers].")
      .def_prop_ro(
          "layer_ids", [](const HashLayout& self) { return self.config.layer_ids; },
          "Model layer ids in the order of the other lists.")
      .def_prop_ro("num_layers", &HashLayout::num_layers, "L: layers that have Engram.")
      .def_prop_ro("num_columns", &HashLayout::num_columns, "C: (N - 1) * heads.")
      .def_prop_ro(
          "lookback_depth", [](const HashLayout& self) { return self.config.lookback_depth(); },
          "N - 1: tokens before a chunk that its hashes depend on.");
}

void bind_token_map(nb::module_& m) {
  nb::class_<TokenMap>(
      m, "TokenMap",
      R"(Maps token ids to compressed ids: tokens of equal normalised text share one.

Args:
    ids: int32 [token ids], the compressed id of each token id.

Raises:
    InvalidArgument: for an id below 0, or no ids at all.)")
      .def(
          "__init__",
          [](TokenMap* self, nb::handle ids) { new (self) TokenMap(token_map_of(ids)); },
          nb::arg("ids"), nb::sig("def __init__(self, ids: penstock._typing.Array) -> None"))
      .def_static("identity", &TokenMap::identity, nb::arg("n"), "Token i maps to i, for i < n.")
      .def_static("from_tokenizer", &TokenMap::from_tokenizer, nb::arg("path"),
                  nb::arg("vocab_size") = nb::none(), nb::call_guard<nb::gil_scoped_release>(),
                  nb::sig("def from_tokenizer(path: str | os.PathLike[str], vocab_size: int | None "
                          "= None) -> TokenMap"),
                  R"(Builds the map from a tokenizer.json.

Each id from the tokenizer's length up to `vocab_size` gets a compressed id of its own.

Raises:
    InvalidArgument: if vocab_size is below the tokenizer's length.
    Error: NotFound, CorruptFile.)")
      .def_static("load", &TokenMap::load, nb::arg("path"),
                  nb::sig("def load(path: str | os.PathLike[str]) -> TokenMap"),
                  nb::call_guard<nb::gil_scoped_release>(),
                  "Reads a file written by save(). Raises Error: NotFound, CorruptFile.")
      .def("save", &TokenMap::save, nb::arg("path"),
           nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Writes the map with its checksum and where it came from.")
      .def_prop_ro(
          "ids",
          [](nb::handle self) {
            const auto ids = nb::cast<const TokenMap&>(self).ids();
            return nb::ndarray<nb::numpy, const std::int32_t, nb::ndim<1>>(ids.data(), {ids.size()},
                                                                           self);
          },
          nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [token ids], read-only; a view that keeps the map alive.")
      .def_prop_ro("size", &TokenMap::size, "Number of compressed ids: the largest one plus 1.")
      .def_prop_ro("provenance", &TokenMap::provenance, "Where the map came from, for people.")
      .def("__len__", [](const TokenMap& self) { return self.ids().size(); });
}

void bind_hasher(nb::module_& m) {
  nb::class_<Hasher>(m, "NgramHasher",
                     R"(Turns tokens into row ids for every Engram layer.

Any chunking of a sequence gives the same ids. May be called from several threads at once.

Args:
    dead_token_id: raw token id that takes part in no n-gram (129264 for V4.1's images).

Raises:
    InvalidArgument: if the map has more compressed ids than the layout's compressed
        vocabulary, or the pad token lies outside the map.)")
      .def(
          "__init__",
          [](Hasher* self, const HashLayout& layout, const TokenMap& token_map,
             std::optional<std::int64_t> dead_token_id) {
            new (self) Hasher{NgramHasher(layout, token_map, dead_token(dead_token_id))};
          },
          nb::arg("layout"), nb::arg("token_map"), nb::arg("dead_token_id") = nb::none())
      .def("__call__", &hash, nb::arg("token_ids"), nb::arg("query_start"), nb::arg("positions"),
           nb::arg("lookback"),
           nb::sig("def __call__(self, token_ids: penstock._typing.ArrayT, query_start: "
                   "penstock._typing.Array, positions: penstock._typing.Array, lookback: "
                   "penstock._typing.Array) -> penstock._typing.ArrayT"),
           R"(Row ids of a step.

Args:
    token_ids: int32 [T], requests one after another.
    query_start: int32 [Q + 1], first token of each request, from 0; the last may be below T.
    positions: int64 [T], consecutive inside a request.
    lookback: int32 [Q, N - 1], the tokens before each chunk, newest first, -1 where unknown.
        Other integer widths are converted if every value fits.

Returns:
    int32 [T, L, C] in the library and on the device of `token_ids`.

Raises:
    InvalidArgument: for shapes that do not fit, or a token id that is neither dead nor in
        the map. On CUDA such a token counts as dead and is counted in `rejected_tokens`.)")
      .def_prop_ro(
          "layout", [](const Hasher& self) -> const HashLayout& { return self.host.layout(); },
          nb::rv_policy::reference_internal, "The layout that it was made with.")
      .def_prop_ro(
          "dead_token_id", [](const Hasher& self) { return self.host.dead_token_id(); },
          "Raw token id that takes part in no n-gram, or None.")
      .def_prop_ro(
          "rejected_tokens",
          [](const Hasher& self) {
            std::uint64_t total = 0;
            for (const auto& [index, hasher] : self.on_device) total += hasher.rejected_tokens();
            return total;
          },
          "Token ids outside the map that CUDA calls have met so far. Waits for the device.");
}

}  // namespace

void bind_engram(nb::module_& m) {
  bind_hash_layout(m);
  bind_token_map(m);
  bind_hasher(m);
}

}  // namespace penstock::python
