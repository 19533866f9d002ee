#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "devices.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/gate/gate_linear.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock::python {
namespace {

// What must lie on an address of 256 bytes.
constexpr std::size_t kWorkspaceAlignment = 256;

template <typename Word>
Word word_from(const char* name, const std::string& text,
               std::optional<Word> (*parse)(std::string_view), const char* words) {
  const std::optional<Word> word = parse(text);
  expects(word.has_value(), std::string(name) + ": found \"" + text + "\", needs " + words);
  return *word;
}

GateStrategy strategy_from(const std::string& text) {
  return word_from("strategy", text, &parse_gate_strategy,
                   "auto, replicated, k_shard, n_shard, weight_gather or identical_rows");
}

// ---- Construction over a group -------------------------------------------------------------

// What a rank tells the others before the gate is made: its part of the weight, or what is wrong.
struct Offer {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::string error;
};

std::vector<std::byte> packed(const Offer& offer) {
  std::vector<std::byte> out(2 * sizeof(std::int64_t) + offer.error.size());
  std::memcpy(out.data(), &offer.rows, sizeof offer.rows);
  std::memcpy(out.data() + sizeof offer.rows, &offer.columns, sizeof offer.columns);
  std::memcpy(out.data() + 2 * sizeof offer.rows, offer.error.data(), offer.error.size());
  return out;
}

Offer unpacked(std::span<const std::byte> bytes) {
  Offer out;
  expects(bytes.size() >= 2 * sizeof(std::int64_t), "GateLinear: found a short offer of a peer");
  std::memcpy(&out.rows, bytes.data(), sizeof out.rows);
  std::memcpy(&out.columns, bytes.data() + sizeof out.rows, sizeof out.columns);
  const auto text = bytes.subspan(2 * sizeof out.rows);
  out.error.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return out;
}

// Every rank's offer; without a group, this one's. An error of one becomes an error of all.
std::vector<Offer> agree(Communicator* comm, const Offer& mine) {
  std::vector<Offer> all;
  if (comm == nullptr) {
    all.push_back(mine);
  } else {
    for (const auto& bytes : comm->all_gather_object(packed(mine))) all.push_back(unpacked(bytes));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string where = all.size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    expects(all[rank].error.empty(), where + all[rank].error);
  }
  return all;
}

GateShape shape_of(const std::vector<Offer>& offers, const Offer& mine, WeightPart part,
                   GatingType gating) {
  GateShape shape{mine.columns, mine.rows, gating};
  if (part == WeightPart::Rows) shape.output_size = 0;
  if (part == WeightPart::Columns) shape.hidden_size = 0;
  for (const Offer& offer : offers) {
    if (part == WeightPart::Rows) shape.output_size += offer.rows;
    if (part == WeightPart::Columns) shape.hidden_size += offer.columns;
  }
  return shape;
}

// ---- The gate ------------------------------------------------------------------------------

struct Gate {
  std::shared_ptr<Communicator> comm;  ///< Outlives the gate.
  nb::object workspace;                ///< Memory that the gate works in.
  GateLinear gate;
  Device device;
};

// The part of a caller's array that the gate may use.
std::span<std::byte> workspace_of(nb::handle object, Device device) {
  if (object.is_none()) return {};
  nb::ndarray<nb::c_contig> array;
  expects(nb::try_cast(object, array, false),
          "workspace: found no writable array without gaps, needs one of bytes");
  const Array described(object, "workspace");
  described.expect_device(device);
  auto* data = static_cast<std::byte*>(array.data());
  std::size_t bytes = array.nbytes();
  const std::size_t skipped =
      (kWorkspaceAlignment - reinterpret_cast<std::uintptr_t>(data) % kWorkspaceAlignment) %
      kWorkspaceAlignment;
  if (skipped >= bytes) return {};
  return {data + skipped, bytes - skipped};
}

Gate* make_gate(nb::handle weight_object, const std::shared_ptr<Communicator>& comm,
                const std::string& strategy, const std::string& gating,
                const std::string& weight_is, nb::object workspace,
                std::optional<std::size_t> max_temp_bytes) {
  Offer mine;
  GateOptions options;
  GatingType gating_type{};
  WeightPart part{};
  std::optional<Array> weight;
  std::span<const BF16> values;
  try {
    options.strategy = strategy_from(strategy);
    options.max_temp_bytes = max_temp_bytes;
    gating_type = word_from("gating", gating, &parse_gating_type, "elementwise or headwise");
    part = word_from("weight_is", weight_is, &parse_weight_part, "full, rows or columns");
    weight.emplace(Array(weight_object, "weight").contiguous());
    weight->expect_shape({-1, -1});
    values = weight->bf16();
    options.device = weight->device();
    options.workspace = workspace_of(workspace, options.device);
    mine.rows = weight->shape()[0];
    mine.columns = weight->shape()[1];
  } catch (const Error& error) {
    mine.error = error.what();
  }
  const nb::gil_scoped_release release;
  const GateShape shape = shape_of(agree(comm.get(), mine), mine, part, gating_type);
  GateLinear gate(shape, values, part, comm.get(), options);
  const nb::gil_scoped_acquire acquire;
  return new Gate{comm, std::move(workspace), std::move(gate), options.device};
}

Gate* open_gate(const std::filesystem::path& model_dir, int layer,
                const std::shared_ptr<Communicator>& comm, const std::string& strategy,
                nb::handle device, nb::object workspace,
                std::optional<std::size_t> max_temp_bytes) {
  Offer mine;
  GateOptions options;
  try {
    options.strategy = strategy_from(strategy);
    options.device = device_from(device);
    options.workspace = workspace_of(workspace, options.device);
    options.max_temp_bytes = max_temp_bytes;
  } catch (const Error& error) {
    mine.error = error.what();
  }
  const nb::gil_scoped_release release;
  agree(comm.get(), mine);
  GateLinear gate = open_gate_linear(model_dir, layer, comm.get(), options);
  const nb::gil_scoped_acquire acquire;
  return new Gate{comm, std::move(workspace), std::move(gate), options.device};
}

std::optional<IndexRange> rows_from(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  std::pair<std::int64_t, std::int64_t> range;
  expects(nb::try_cast(object, range), "identical_rows: found " +
                                           std::string(nb::repr(object).c_str()) +
                                           ", needs (begin, end) or None");
  return IndexRange{range.first, range.second};
}

nb::object forward(Gate& self, nb::handle x_object, nb::handle attn_object,
                   nb::handle counts_object, nb::handle identical_object) {
  const Array x = Array(x_object, "x").contiguous();
  x.expect_shape({-1, self.gate.shape().hidden_size});
  x.expect_device(self.device);
  const Array attn_out = Array(attn_object, "attn_out").contiguous();
  attn_out.expect_shape({x.shape()[0], -1});
  attn_out.expect_device(self.device);
  std::optional<Integers<std::int64_t>> counts;
  if (!counts_object.is_none()) counts.emplace(Array(counts_object, "token_counts"));

  GateCall call;
  call.tokens = x.shape()[0];
  call.attn_width = attn_out.shape()[1];
  call.x = x.bf16();
  call.attn_out = attn_out.bf16();
  if (counts) call.token_counts = counts->values();
  call.identical_rows = rows_from(identical_object);
  Output out(x, attn_out.shape(), Output::Type::BF16);
  call.out = out.bf16();
  const StreamRef stream = x.stream();
  {
    const nb::gil_scoped_release release;
    self.gate.forward(call, stream);
  }
  return out.release();
}

void bind_gate_properties(nb::class_<Gate>& gate) {
  gate.def_prop_ro(
          "hidden_size", [](const Gate& self) { return self.gate.shape().hidden_size; },
          "H: columns of the weight, width of x.")
      .def_prop_ro(
          "output_size", [](const Gate& self) { return self.gate.shape().output_size; },
          "G: rows of the weight; with headwise gating, the heads.")
      .def_prop_ro(
          "strategy", [](const Gate& self) { return std::string(to_string(self.gate.strategy())); },
          "The strategy in use; auto becomes replicated when each rank keeps the whole weight.")
      .def_prop_ro(
          "resident_bytes", [](const Gate& self) { return self.gate.resident_bytes(); },
          "Bytes of the weight that this rank keeps.")
      .def_prop_ro(
          "peak_workspace_bytes", [](const Gate& self) { return self.gate.peak_workspace_bytes(); },
          "Workspace that calls have touched so far, at most.")
      .def_prop_ro(
          "owned",
          [](const Gate& self) {
            const IndexRange owned = self.gate.owned();
            return std::pair(owned.begin, owned.end);
          },
          "Rows of the weight (k_shard: columns) that this rank owns, (begin, end).")
      .def(
          "workspace_bytes",
          [](const Gate& self, std::int64_t max_tokens,
             const std::optional<std::string>& strategy) {
            return self.gate.workspace_bytes(
                max_tokens, strategy ? strategy_from(*strategy) : self.gate.strategy());
          },
          nb::arg("max_tokens"), nb::arg("strategy") = nb::none(),
          "Bytes of workspace that a call of up to `max_tokens` tokens a rank needs, exactly.")
      .def(
          "prefetch",
          [](Gate& self) {
            const nb::gil_scoped_release release;
            self.gate.prefetch();
          },
          "Starts this layer's weight on its way, if it travels. Optional.");
}

}  // namespace

void bind_gate(nb::module_& m) {
  nb::class_<Gate> gate(m, "GateLinear",
                        R"(out = attn_out * sigmoid(x weight^T), the weight spread over a group.

Construction and calls are collective over `comm`. One call at a time.

Args:
    weight: bf16 [G, H], or this rank's rows or columns of it, as `weight_is` says. Its device is
        the gate's.
    comm: the ranks that share the weight; None is a group of one.
    strategy: "auto", "replicated", "k_shard", "n_shard", "weight_gather" or "identical_rows".
    gating: "elementwise" (G numbers of attn_out for G rows) or "headwise" (G heads).
    weight_is: "full", "rows" ([r * G // P, (r + 1) * G // P) on rank r) or "columns".
    workspace: writable bytes on the weight's device to work in, instead of memory of its own.
    max_temp_bytes: bound on workspace and travelling weight.

Raises:
    InvalidArgument: on every rank, naming the rank that it comes from.
    Error: OutOfMemory, PeerFailed.)");
  gate.def_static("open", &open_gate, nb::rv_policy::take_ownership, nb::arg("model_dir"),
                  nb::arg("layer"), nb::arg("comm") = nb::none(), nb::arg("strategy") = "auto",
                  nb::kw_only(), nb::arg("device") = nb::none(), nb::arg("workspace") = nb::none(),
                  nb::arg("max_temp_bytes") = nb::none(),
                  nb::sig("def open(model_dir: str | os.PathLike[str], layer: int, comm: "
                          "Communicator | None = None, strategy: str = 'auto', *, device: "
                          "typing.Any = None, workspace: typing.Any = None, max_temp_bytes: int | "
                          "None = None) -> GateLinear"),
                  R"(The gate of a layer of a model directory; reads this rank's share of it only.

Args:
    layer: model layer id.
    comm, strategy, workspace, max_temp_bytes: as for GateLinear().
    device: as for Table.open().

Raises:
    InvalidArgument: as for GateLinear().
    Error: NotFound if the model has no such gate; Unsupported if its weight is not bf16;
        CorruptFile if its shape is not that of config.json.)");
  gate.def(nb::new_(&make_gate), nb::arg("weight"), nb::arg("comm") = nb::none(),
           nb::arg("strategy") = "auto", nb::arg("gating") = "elementwise", nb::kw_only(),
           nb::arg("weight_is") = "full", nb::arg("workspace") = nb::none(),
           nb::arg("max_temp_bytes") = nb::none())
      .def("__call__", &forward, nb::arg("x"), nb::arg("attn_out"),
           nb::arg("token_counts") = nb::none(), nb::arg("identical_rows") = nb::none(),
           nb::sig("def __call__(self, x: penstock._typing.ArrayT, attn_out: "
                   "penstock._typing.Array, token_counts: penstock._typing.Array | None = None, "
                   "identical_rows: tuple[int, int] | None = None) -> penstock._typing.ArrayT"),
           R"(The gated attention output.

Args:
    x: bf16 [T, H]; T may be 0 and may differ between ranks.
    attn_out: bf16 [T, G], or headwise [T, G * v_head_dim].
    token_counts: T of every rank; None asks the other ranks, which CUDA graphs cannot capture.
    identical_rows: (begin, end), rows of this rank that every rank has with equal contents.

Returns:
    bf16 of the shape of attn_out, in the library and on the device of `x`.

Raises:
    InvalidArgument: for shapes that do not fit, or differ from token_counts.
    Error: PeerFailed.)");
  bind_gate_properties(gate);
}

}  // namespace penstock::python
