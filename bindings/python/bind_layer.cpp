#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "bindings.hpp"
#include "devices.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/engram_gate.hpp"
#include "penstock/engram/engram_layer.hpp"
#include "penstock/table/host_backing.hpp"
#include "penstock/table/placement.hpp"
#include "row_ids.hpp"

namespace penstock::python {
namespace {

std::span<const std::uint8_t> mask_values(const std::optional<Array>& mask) {
  return mask ? mask->flags() : std::span<const std::uint8_t>();
}

// A mask argument, checked against the tokens; nothing for None.
std::optional<Array> mask_of(nb::handle object, std::int64_t tokens, Device device) {
  if (object.is_none()) return std::nullopt;
  const Array mask = Array(object, "mask").contiguous();
  mask.expect_shape({tokens});
  mask.expect_device(device);
  return mask;
}

nb::object gate(nb::handle hidden_object, nb::handle kv_object, nb::handle q_object,
                nb::handle k_object, double eps, nb::handle mask_object) {
  const Array hidden = Array(hidden_object, "hidden").contiguous();
  hidden.expect_shape({-1, -1, -1});
  const std::int64_t tokens = hidden.shape()[0];
  const std::int64_t copies = hidden.shape()[1];
  const std::int64_t dim = hidden.shape()[2];
  const Device device = hidden.device();
  const Array kv = Array(kv_object, "kv").contiguous();
  kv.expect_shape({tokens, (copies + 1) * dim});
  kv.expect_device(device);
  const Array q_weight = Array(q_object, "q_weight").contiguous();
  q_weight.expect_shape({copies, dim});
  q_weight.expect_device(device);
  const Array k_weight = Array(k_object, "k_weight").contiguous();
  k_weight.expect_shape({copies, dim});
  k_weight.expect_device(device);
  const std::optional<Array> mask = mask_of(mask_object, tokens, device);

  EngramGateArguments arguments{.hidden = hidden.bf16(),
                                .kv = kv.bf16(),
                                .q_weight = q_weight.bf16(),
                                .k_weight = k_weight.bf16(),
                                .eps = static_cast<float>(eps),
                                .mask = mask_values(mask),
                                .out = {}};
  Output out(hidden, hidden.shape(), Output::Type::BF16);
  arguments.out = out.bf16();
  const StreamRef stream = hidden.stream();
  {
    const nb::gil_scoped_release release;
    engram_gate({tokens, static_cast<int>(copies), static_cast<int>(dim)}, arguments, device,
                stream);
  }
  return out.release();
}

// ---- EngramLayer ---------------------------------------------------------------------------

// A read under way, with what its rows() needs.
struct LayerTicket {
  LayerTicket(Ticket ticket_in, const RowIdsArgument& ids, std::int64_t columns_in,
              std::int64_t head_dim_in, Device device_in)
      : ticket(std::move(ticket_in)),
        library(ids.given().library()),
        row_ids(ids.keep_alive()),
        stream(ids.given().stream()),
        columns(columns_in),
        head_dim(head_dim_in),
        device(device_in) {}
  // The consumer's work so far is ordered before the slot's next use.
  ~LayerTicket() { ticket.release(stream); }
  LayerTicket(const LayerTicket&) = delete;
  LayerTicket& operator=(const LayerTicket&) = delete;

  Ticket ticket;
  Library library;
  nb::object row_ids;  ///< Read by CUDA until the ticket is waited for.
  StreamRef stream;
  std::int64_t columns;
  std::int64_t head_dim;
  Device device;
};

struct Layer {
  EngramLayer layer;
  LayerColumns columns;
};

Layer* open_layer(const std::filesystem::path& model_dir, int layer, const std::string& placement,
                  const std::shared_ptr<Communicator>& comm, std::int64_t max_tokens,
                  nb::handle device, int slots, const std::string& backing) {
  const std::optional<Placement> word = parse_placement(placement);
  expects(word.has_value(), "placement: found \"" + placement +
                                "\", needs auto, device, peer, host, host_shared or file");
  const std::optional<HostBacking> backing_word = parse_host_backing(backing);
  expects(backing_word.has_value(),
          "backing: found \"" + backing + "\", needs auto, cumem, hugetlb or memfd");
  EngramLayerOptions options;
  options.backing = *backing_word;
  options.placement = *word;
  options.device = device_from(device);
  options.group = comm.get();
  options.max_tokens = max_tokens;
  options.slots = slots;
  const nb::gil_scoped_release release;
  const ModelDir model = ModelDir::open(model_dir);
  EngramLayer opened = EngramLayer::open(model, layer, options);
  const EngramConfig& engram = *model.config().engram;
  return new Layer{std::move(opened),
                   {engram.hash_layer_index(layer).value_or(0),
                    static_cast<int>(engram.layer_ids.size()), engram.num_columns()}};
}

LayerTicket* prefetch(Layer& self, nb::handle row_ids) {
  const Table& table = self.layer.table();
  const RowIdsArgument argument(row_ids, self.columns, table.device());
  const StreamRef stream = argument.given().stream();
  Ticket ticket = [&] {
    const nb::gil_scoped_release release;
    return self.layer.prefetch(argument.ids(), stream);
  }();
  return new LayerTicket(std::move(ticket), argument, table.view().local_columns,
                         table.view().head_dim, table.device());
}

nb::object forward(Layer& self, nb::handle hidden_object, LayerTicket& ticket,
                   nb::handle mask_object) {
  const Array hidden = Array(hidden_object, "hidden").contiguous();
  const EngramInjection& injection = self.layer.injection();
  const Device device = self.layer.table().device();
  const std::int64_t tokens = ticket.ticket.tokens();
  hidden.expect_shape({tokens, injection.hc_mult(), injection.dim()});
  hidden.expect_device(device);
  const std::optional<Array> mask = mask_of(mask_object, tokens, device);
  const std::span<const BF16> values = hidden.bf16();
  const std::span<const std::uint8_t> flags = mask_values(mask);
  Output out(hidden, hidden.shape(), Output::Type::BF16);
  const StreamRef stream = hidden.stream();
  ticket.stream = stream;
  {
    const nb::gil_scoped_release release;
    self.layer.forward(values, ticket.ticket, flags, out.bf16(), stream);
  }
  return out.release();
}

// The staging memory itself. The array keeps the ticket, and with it the slot.
nb::object ticket_rows(nb::handle self_object) {
  auto& self = nb::cast<LayerTicket&>(self_object);
  const StreamRef stream = self.stream;
  std::span<const std::byte> rows;
  {
    const nb::gil_scoped_release release;
    self.ticket.wait(stream);
    rows = self.ticket.rows();
  }
  const std::array<std::size_t, 3> shape{static_cast<std::size_t>(self.ticket.tokens()),
                                         static_cast<std::size_t>(self.columns),
                                         static_cast<std::size_t>(self.head_dim)};
  if (self.library == Library::Numpy) {
    return nb::cast(
        nb::ndarray<nb::numpy, const std::uint16_t>(rows.data(), 3, shape.data(), self_object));
  }
  const nb::dlpack::dtype bf16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  const int kind =
      self.device.kind == DeviceKind::Cuda ? nb::device::cuda::value : nb::device::cpu::value;
  // torch has no read-only tensors: a const array could not be exported to it.
  auto* data = const_cast<std::byte*>(rows.data());
  return nb::cast(nb::ndarray<nb::pytorch>(data, 3, shape.data(), self_object, nullptr, bf16, kind,
                                           self.device.index));
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

void bind_ticket(nb::module_& m) {
  nb::class_<LayerTicket>(m, "Ticket", R"(A read under way, made by EngramLayer.prefetch().

Dropping a ticket joins its read and gives its slot back.)")
      .def_prop_ro(
          "tokens", [](const LayerTicket& self) { return self.ticket.tokens(); }, "T.")
      .def_prop_ro(
          "read_seconds", [](const LayerTicket& self) { return seconds(self.ticket.read_time()); },
          "How long the read took, once it has been waited for. CPU only: 0 on CUDA.")
      .def_prop_ro(
          "wait_seconds", [](const LayerTicket& self) { return seconds(self.ticket.wait_time()); },
          "Of that, how long the waiting call stood still. CPU only: 0 on CUDA.")
      .def("rows", &ticket_rows, nb::sig("def rows(self) -> penstock._typing.Array"),
           R"(Waits for the read; the rows themselves, without a copy.

Returns:
    [T, local_columns, D] bf16 (numpy: uint16, read-only). The array keeps the slot taken; once the
    ticket has been given to its layer the contents may change.

Raises:
    InvalidArgument: if the ticket has been given to its layer already.)");
}

void bind_layer_class(nb::module_& m) {
  nb::class_<Layer>(m, "EngramLayer", R"(One Engram layer: rows, projection, gate, injection.

One call at a time.)")
      .def_static("open", &open_layer, nb::rv_policy::take_ownership, nb::arg("model_dir"),
                  nb::arg("layer"), nb::arg("placement") = "auto", nb::arg("comm") = nb::none(),
                  nb::arg("max_tokens") = 8192, nb::kw_only(), nb::arg("device") = nb::none(),
                  nb::arg("slots") = 2, nb::arg("backing") = "auto", nb::keep_alive<0, 4>(),
                  nb::sig("def open(model_dir: str | os.PathLike[str], layer: int, placement: str "
                          "= 'auto', comm: Communicator | None = None, max_tokens: int = 8192, *, "
                          "device: typing.Any = None, slots: int = 2, backing: str = 'auto') -> "
                          "EngramLayer"),
                  R"(Opens a layer's table and weights. Collective over `comm`.

Args:
    layer: model layer id.
    placement: as for Table.open().
    comm: ranks of a node that share the table; None is a group of one.
    max_tokens: of one step.
    device: as for Table.open().
    slots: tickets that may be held at once.
    backing: as for Table.open().

Raises:
    InvalidArgument: for options out of range.
    Error: NotFound, CorruptFile, Unsupported, OutOfMemory, PeerFailed.)")
      .def("prefetch", &prefetch, nb::rv_policy::take_ownership, nb::arg("row_ids"),
           nb::sig("def prefetch(self, row_ids: penstock._typing.Array) -> Ticket"),
           R"(Starts reading the rows of a step, beside whatever else is going on.

Args:
    row_ids: int32 [T, C] or [T, L, C] on the layer's device, as for Table.lookup().

Raises:
    InvalidArgument: for more than max_tokens tokens, or if every slot is held by a ticket.)")
      .def("__call__", &forward, nb::arg("hidden"), nb::arg("ticket"), nb::arg("mask") = nb::none(),
           nb::sig("def __call__(self, hidden: penstock._typing.ArrayT, ticket: Ticket, mask: "
                   "penstock._typing.Array | None = None) -> penstock._typing.ArrayT"),
           R"(Waits for the ticket, projects its rows and injects them; gives the slot back.

Args:
    hidden: bf16 [T, hc, dim], T that of the ticket.
    mask: bool [T]; a token of False keeps its hidden.

Returns:
    The new hidden, bf16 [T, hc, dim].)")
      .def_prop_ro(
          "resident_bytes",
          [](const Layer& self) { return self.layer.injection().resident_bytes(); },
          "Bytes of dense weights and workspace, beside the table.");
}

}  // namespace

void bind_layer(nb::module_& m) {
  bind_ticket(m);
  bind_layer_class(m);
  m.def("engram_gate", &gate, nb::arg("hidden"), nb::arg("kv"), nb::arg("q_weight"),
        nb::arg("k_weight"), nb::arg("eps"), nb::arg("mask") = nb::none(),
        nb::sig("def engram_gate(hidden: penstock._typing.ArrayT, kv: penstock._typing.Array, "
                "q_weight: penstock._typing.Array, k_weight: penstock._typing.Array, eps: float, "
                "mask: penstock._typing.Array | None = None) -> penstock._typing.ArrayT"),
        R"(Adds the gated value to every copy of the residual stream.

dot  = sum(hidden * q_weight * k_weight * key) / (rms(hidden) * rms(key) * sqrt(dim))
gate = sigmoid(sign(dot) * sqrt(max(|dot|, 1e-6)))      (the sign of 0 is +)
out  = bf16(hidden + gate * value)

Args:
    hidden: bf16 [T, hc, dim].
    kv: bf16 [T, (hc + 1) * dim], the keys of the copies, then the value.
    q_weight, k_weight: bf16 [hc, dim].
    eps: of both RMS norms.
    mask: bool [T]; a token of False keeps its hidden, bit for bit.

Returns:
    The new hidden, bf16 [T, hc, dim], in the library and on the device of `hidden`.

Raises:
    InvalidArgument: for shapes, types or devices that do not fit.)");
}

}  // namespace penstock::python
