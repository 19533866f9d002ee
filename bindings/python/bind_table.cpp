#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "devices.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/engram_layer.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/column_shards.hpp"
#include "penstock/table/host_backing.hpp"
#include "penstock/table/placement.hpp"
#include "penstock/table/table.hpp"
#include "row_ids.hpp"

namespace penstock::python {
namespace {

using ShardTuple = std::tuple<int, int, std::int64_t, std::int64_t, int>;

std::vector<ShardTuple> column_shards_of(const std::vector<std::int64_t>& head_sizes, int shards) {
  std::vector<ShardTuple> out;
  for (const ColumnShard& shard : column_shards(head_sizes, shards)) {
    out.emplace_back(shard.column_start, shard.column_end, shard.row_start, shard.row_end,
                     shard.local_columns);
  }
  return out;
}

nb::object dequantize(nb::handle values_object, nb::handle scales_object) {
  const Array given(values_object, "values");
  const Array values = given.on_cpu().contiguous();
  const Array scales = Array(scales_object, "scales").on_cpu().contiguous();
  values.expect_shape({-1, -1});
  const std::int64_t rows = values.shape()[0];
  const std::int64_t head_dim = values.shape()[1];
  expects(head_dim > 0 && head_dim % 32 == 0,
          "values: found shape " + values.shape_text() + ", needs a multiple of 32 columns");
  scales.expect_shape({rows, head_dim / 32});
  const auto value_bytes = values.bytes();
  const auto scale_bytes = scales.bytes();
  Output out = Output::on_cpu(given, values.shape(), Output::Type::BF16);
  {
    const nb::gil_scoped_release release;
    dequantize_rows(value_bytes, scale_bytes, static_cast<int>(head_dim),
                    std::as_writable_bytes(out.bf16()));
  }
  return out.release();
}

Placement placement_from(const std::string& word) {
  const std::optional<Placement> placement = parse_placement(word);
  expects(placement.has_value(),
          "placement: found \"" + word + "\", needs auto, device, peer, host, host_shared or file");
  return *placement;
}

HostBacking backing_from(const std::string& word) {
  const std::optional<HostBacking> backing = parse_host_backing(word);
  expects(backing.has_value(),
          "backing: found \"" + word + "\", needs auto, cumem, hugetlb or memfd");
  return *backing;
}

// A table and the place of its ids among those of a step.
struct LayerTable {
  Table table;
  LayerColumns layer;
};

LayerTable open_table(const std::filesystem::path& model_dir, int layer, std::pair<int, int> shard,
                      const std::string& placement, const std::shared_ptr<Communicator>& comm,
                      nb::handle device, bool may_fall_back, const std::string& backing) {
  TableOptions options;
  options.placement = placement_from(placement);
  options.shard = {shard.first, shard.second};
  options.device = device_from(device);
  options.group = comm.get();
  options.may_fall_back = may_fall_back;
  options.backing = backing_from(backing);
  const nb::gil_scoped_release release;
  const ModelDir model = ModelDir::open(model_dir);
  TableSpec spec = engram_table_spec(model.config(), layer);
  const EngramConfig& engram = *model.config().engram;
  const LayerColumns columns{engram.hash_layer_index(layer).value_or(0),
                             static_cast<int>(engram.layer_ids.size()), engram.num_columns()};
  return {Table::open(spec, open_checkpoint_rows(model, layer), options), columns};
}

// Rows for ids that do not lie where the table is read: over there and back.
void lookup_elsewhere(const TableView& view, const RowIds& ids, Device device,
                      std::span<std::byte> out) {
  const auto count = static_cast<std::size_t>(ids.tokens * ids.columns);
  std::vector<std::int32_t> dense;
  dense.reserve(count);
  for (std::int64_t t = 0; t < ids.tokens; ++t) {
    const std::int32_t* row = ids.data + t * ids.token_stride;
    dense.insert(dense.end(), row, row + ids.columns);
  }
  const Buffer there = Buffer::copy_of(std::as_bytes(std::span(dense)), device);
  const Buffer rows = Buffer::allocate(device, out.size());
  const RowIds ids_there{there.as<std::int32_t>().data(), ids.tokens, ids.columns, ids.columns};
  gather_rows(view, ids_there, RowFormat::Bf16, {rows.data(), rows.bytes()}, device);
  copy_bytes(out, rows);
}

nb::object lookup(const LayerTable& self, nb::handle row_ids) {
  const TableView& view = self.table.view();
  const Device device = self.table.device();
  const Array given(row_ids, "row_ids");
  // Ids in host memory are read there; the rest is a matter of copies.
  const bool is_remote = device != Device::cpu() && given.device() == Device::cpu();
  const RowIdsArgument argument(row_ids, self.layer, is_remote ? Device::cpu() : device);
  const RowIds& ids = argument.ids();
  const std::array<std::int64_t, 3> shape{ids.tokens, view.local_columns, view.head_dim};
  Output out = device == Device::cpu() ? Output::on_cpu(given, shape, Output::Type::BF16)
                                       : Output(given, shape, Output::Type::BF16);
  const StreamRef stream = given.stream();
  const std::span<std::byte> bytes = std::as_writable_bytes(out.bf16());
  {
    const nb::gil_scoped_release release;
    if (ids.tokens == 0) {
      // Nothing to read; a gather of nothing would have no address to check.
    } else if (is_remote) {
      lookup_elsewhere(view, ids, device, bytes);
    } else {
      gather_rows(view, ids, RowFormat::Bf16, bytes, device, stream);
    }
  }
  return out.release();
}

nb::dict status_of(const LayerTable& self) {
  const TableStatus& status = self.table.status();
  nb::dict out;
  out["placement"] = std::string(to_string(status.placement));
  out["device"] = to_string(self.table.device());
  out["backing"] = status.backing;
  out["backing_choice"] = status.backing_choice;
  out["resident_bytes"] = status.resident_bytes;
  out["shared_bytes"] = status.shared_bytes;
  out["is_row_sharded"] = status.is_row_sharded;
  out["degraded"] = status.degraded;
  out["load_seconds"] = status.load_seconds;
  return out;
}

void bind_table_class(nb::module_& m) {
  nb::class_<LayerTable>(m, "Table",
                         R"(The embedding rows of one Engram layer, or a shard of them.

Read-only once opened; lookups may run on several threads at once. Arrays made from a table stay
valid when it is gone.)")
      .def_static("open", &open_table, nb::arg("model_dir"), nb::arg("layer"),
                  nb::arg("shard") = std::pair(0, 1), nb::arg("placement") = "auto",
                  nb::arg("comm") = nb::none(), nb::kw_only(), nb::arg("device") = nb::none(),
                  nb::arg("may_fall_back") = false, nb::arg("backing") = "auto",
                  nb::sig("def open(model_dir: str | os.PathLike[str], layer: int, shard: "
                          "tuple[int, int] = (0, 1), placement: str = 'auto', comm: Communicator "
                          "| None = None, *, device: typing.Any = None, may_fall_back: bool = "
                          "False, backing: str = 'auto') -> Table"),
                  R"(Places and loads a layer's table. Collective over `comm`.

Args:
    model_dir: a model directory in Hugging Face form.
    layer: model layer id.
    shard: (index, count). Whole columns where that leaves no shard empty, else a range of row
        ids; `status` says which.
    placement: "auto", "device", "peer", "host", "host_shared" or "file".
    comm: ranks of one node that share the memory of this shard; None is a group of one.
    device: where rows are read: "cpu", "cuda", "cuda:1" or a torch.device. None is the current
        CUDA device if there is one, else the CPU.
    may_fall_back: take another placement, and say so in `status`, if this one cannot be had.
    backing: what the memory of "host_shared" is made of: "auto", "cumem", "hugetlb" or "memfd".

Raises:
    InvalidArgument: for an illegal shard, placement or backing.
    Error: NotFound, CorruptFile, Unsupported, OutOfMemory, PeerFailed. Nothing is left then.)")
      .def("lookup", &lookup, nb::arg("row_ids"),
           nb::sig("def lookup(self, row_ids: penstock._typing.ArrayT) -> penstock._typing.ArrayT"),
           R"(Rows of every token. Never communicates.

Args:
    row_ids: int32 [T, C], or [T, L, C] of which the table picks its layer; always all global
        columns. -1, and a row that this shard does not hold, give zeros.

Returns:
    [T, local_columns, D] bf16 in the library and on the device of `row_ids` (numpy: uint16).
    On CUDA the work is ordered on torch's current stream.

Raises:
    InvalidArgument: for another shape, or a value that does not fit int32. A row id out of
        range is no error: it gives zeros and is counted in `rejected_ids`.)")
      .def_prop_ro("status", &status_of, nb::sig("def status(self) -> dict[str, typing.Any]"),
                   "What became of the table: placement, backing and why, bytes, seconds to load.")
      .def_prop_ro(
          "layer", [](const LayerTable& self) { return self.table.spec().layer_id; },
          "Model layer id.")
      .def_prop_ro(
          "num_rows", [](const LayerTable& self) { return self.table.spec().num_rows; },
          "Rows of the whole table.")
      .def_prop_ro(
          "head_dim", [](const LayerTable& self) { return self.table.spec().head_dim; },
          "D: numbers in a row.")
      .def_prop_ro(
          "local_columns", [](const LayerTable& self) { return self.table.view().local_columns; },
          "Columns that lookup() gives.")
      .def_prop_ro(
          "columns",
          [](const LayerTable& self) {
            return std::pair(self.table.view().column_begin, self.table.view().column_end);
          },
          "Global columns of this shard, (begin, end).")
      .def_prop_ro(
          "rejected_ids", [](const LayerTable& self) { return self.table.rejected_ids(); },
          "Row ids out of range that lookups of this process have met so far.");
}

}  // namespace

void bind_table(nb::module_& m) {
  bind_table_class(m);
  m.def("column_shards", &column_shards_of, nb::arg("head_sizes"), nb::arg("shards"),
        R"(Cuts the columns of a table into runs of ceil(columns / shards) columns.

Args:
    head_sizes: rows of each column.

Returns:
    For each shard (column_start, column_end, row_start, row_end, local_columns); ends are
    exclusive, local_columns is equal on all shards.

Raises:
    InvalidArgument: if a shard would be empty.)");

  m.def("dequantize", &dequantize, nb::arg("values"), nb::arg("scales"),
        nb::sig("def dequantize(values: penstock._typing.ArrayT, scales: penstock._typing.Array) "
                "-> penstock._typing.ArrayT"),
        R"(Turns table rows into bf16: bf16(e4m3(value) * scale), rounded once, ties to even.

Args:
    values: [n, D] e4m3 codes: uint8, or float8_e4m3fn. D is a multiple of 32.
    scales: [n, D / 32] scale bytes: uint8, or float8_e8m0fnu.

Returns:
    [n, D] bf16 in the library and on the device of `values` (numpy: its bits as uint16).
    NaN becomes 0x7FC0, overflow infinity; subnormals are kept.

Raises:
    InvalidArgument: for other shapes or element types.)");
}

}  // namespace penstock::python
