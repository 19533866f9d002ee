#include <nanobind/nanobind.h>
#include <nanobind/stl/chrono.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "devices.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/comm/launch.hpp"
#include "penstock/core/error.hpp"
#include "python_call.hpp"

namespace penstock::python {
namespace {

using Shared = std::shared_ptr<Communicator>;

nb::bytes as_bytes(std::span<const std::byte> data) {
  return nb::bytes(data.data(), data.size());
}

std::vector<std::byte> from_bytes(nb::handle object) {
  const auto bytes = nb::cast<nb::bytes>(object);
  const auto* data = static_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

std::vector<std::vector<std::byte>> list_of_bytes(nb::handle answer) {
  std::vector<std::vector<std::byte>> out;
  for (const nb::handle item : nb::cast<nb::list>(answer)) out.push_back(from_bytes(item));
  return out;
}

// The Python functions of one group.
struct Functions {
  nb::object all_gather_bytes;
  nb::object barrier = nb::none();
  nb::object all_to_all_bytes = nb::none();
  nb::object abort = nb::none();
  nb::object split = nb::none();
};

// What a split function answers: a dict with the names of Communicator.callbacks().
Functions functions_of(nb::handle answer) {
  const auto named = nb::cast<nb::dict>(answer);
  const auto get = [&](const char* name) {
    return named.contains(name) ? nb::object(named[name]) : nb::none();
  };
  return {get("all_gather_bytes"), get("barrier"), get("all_to_all_bytes"), get("abort"),
          get("split")};
}

CommCallbacks callbacks_of(Functions functions) {
  CommCallbacks out;
  out.all_gather =
      [call = PythonCall(std::move(functions.all_gather_bytes))](std::span<const std::byte> mine) {
        return call(
            [&](const nb::object& function) { return list_of_bytes(function(as_bytes(mine))); });
      };
  if (!functions.barrier.is_none()) {
    out.barrier = [call = PythonCall(std::move(functions.barrier))] {
      call([](const nb::object& function) { function(); });
    };
  }
  if (!functions.all_to_all_bytes.is_none()) {
    out.all_to_all = [call = PythonCall(std::move(functions.all_to_all_bytes))](
                         const std::vector<CommCallbacks::Bytes>& for_each_rank) {
      return call([&](const nb::object& function) {
        nb::list blocks;
        for (const auto& block : for_each_rank) blocks.append(as_bytes(block));
        return list_of_bytes(function(blocks));
      });
    };
  }
  if (!functions.abort.is_none()) {
    out.abort = [call = PythonCall(std::move(functions.abort))](std::string_view cause) {
      try {
        call([&](const nb::object& function) { function(std::string(cause)); });
      } catch (const std::exception&) {
        return;  // the group is being given up; there is nobody left to tell
      }
    };
  }
  if (!functions.split.is_none()) {
    out.split = [call = PythonCall(std::move(functions.split))](
                    const std::vector<std::vector<int>>& groups, int mine) {
      return call([&](const nb::object& function) {
        const nb::object answer = function(groups, mine);
        return mine < 0 ? CommCallbacks{} : callbacks_of(functions_of(answer));
      });
    };
  }
  return out;
}

Shared from_callbacks(int rank, int size, nb::object all_gather_bytes, nb::object barrier,
                      nb::object all_to_all_bytes, nb::object abort, nb::object split) {
  CommCallbacks callbacks =
      callbacks_of({std::move(all_gather_bytes), std::move(barrier), std::move(all_to_all_bytes),
                    std::move(abort), std::move(split)});
  const nb::gil_scoped_release release;
  return make_callback_communicator(rank, size, std::move(callbacks));
}

CommOptions options_with(double deadline_seconds) {
  CommOptions options;
  options.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(deadline_seconds * 1000));
  options.start_deadline = options.deadline;
  return options;
}

Shared from_launch(double deadline_seconds) {
  const nb::gil_scoped_release release;
  const std::optional<Launch> launch = detect_launch();
  if (!launch) {
    throw Error(ErrorCode::NotFound,
                "join_launch: found no variables of a launcher, needs a process started by "
                "penstock.launch_processes, mpirun, torchrun or srun");
  }
  return join_launch(*launch, options_with(deadline_seconds));
}

std::vector<Shared> thread_group(int n, double deadline_seconds) {
  std::vector<Shared> out;
  for (auto& rank : make_thread_group(n, options_with(deadline_seconds)))
    out.emplace_back(std::move(rank));
  return out;
}

nb::list all_gather_bytes(Communicator& self, const nb::bytes& mine) {
  const std::span<const std::byte> data(static_cast<const std::byte*>(mine.data()), mine.size());
  std::vector<std::vector<std::byte>> all;
  {
    const nb::gil_scoped_release release;
    all = self.all_gather_object(data);
  }
  nb::list out;
  for (const auto& bytes : all) out.append(as_bytes(bytes));
  return out;
}

}  // namespace

void bind_comm(nb::module_& m) {
  nb::class_<Communicator>(m, "Communicator",
                           R"(A group of ranks that exchange bytes.

Every rank of a group makes the same calls in the same order. When a rank fails or leaves, the
others' pending and next calls raise Error with code "PeerFailed". One call at a time.)")
      .def_static("threads", &thread_group, nb::arg("n"), nb::kw_only(),
                  nb::arg("deadline_seconds") = 60.0,
                  R"(A group of `n` ranks inside this process, one for each of `n` threads.

Returns:
    A list of n communicators. A rank waits `deadline_seconds` for the others in one call.)")
      .def_static(
          "mpi",
          [] {
            const nb::gil_scoped_release release;
            return Shared(make_mpi_communicator());
          },
          "All ranks of MPI_COMM_WORLD. Raises Error: Unsupported in a build without MPI.")
      .def_static(
          "join_launch", &from_launch, nb::kw_only(), nb::arg("deadline_seconds") = 60.0,
          R"(All processes of the job that launch_processes(), mpirun, torchrun or srun started.

Needs neither MPI nor torch: the ranks meet at the place that the launcher's variables name.

Args:
    deadline_seconds: how long a rank waits for the others, to meet and in one call.

Raises:
    Error: NotFound without such variables; Unsupported if they name no meeting place (set
        PENSTOCK_ADDRESS then); PeerFailed if ranks do not come.)")
      .def_static(
          "nccl",
          [](Communicator& host, nb::handle device) {
            const Device where = device_from(device);
            const nb::gil_scoped_release release;
            return Shared(make_nccl_communicator(host, where));
          },
          nb::arg("host"), nb::arg("device") = nb::none(), nb::keep_alive<0, 1>(),
          nb::sig("def nccl(host: Communicator, device: typing.Any = None) -> Communicator"),
          R"(The ranks of `host`, each with a CUDA device of its own, joined by NCCL.

GateLinear's strategies k_shard, n_shard and identical_rows need it on GPUs. Collective over `host`.

Raises:
    Error: Unsupported in a build without NCCL, or if its library cannot be opened.)")
      .def_static("callbacks", &from_callbacks, nb::arg("rank"), nb::arg("size"),
                  nb::arg("all_gather_bytes"), nb::arg("barrier") = nb::none(),
                  nb::arg("all_to_all_bytes") = nb::none(), nb::arg("abort") = nb::none(),
                  nb::arg("split") = nb::none(),
                  nb::sig("def callbacks(rank: int, size: int, all_gather_bytes: "
                          "collections.abc.Callable[[bytes], list[bytes]], barrier: "
                          "collections.abc.Callable[[], None] | None = None, all_to_all_bytes: "
                          "collections.abc.Callable[[list[bytes]], list[bytes]] | None = None, "
                          "abort: collections.abc.Callable[[str], None] | None = None, split: "
                          "collections.abc.Callable[[list[list[int]], int], dict[str, typing.Any] "
                          "| None] | None = None) -> Communicator"),
                  R"(A communicator made of a framework's own collectives.

Args:
    all_gather_bytes: gives every rank's bytes, whose lengths may differ, in rank order.
    barrier: returns when every rank has called it; made from all_gather_bytes if None.
    all_to_all_bytes: takes a block for each rank, gives one from each.
    abort: told the cause when this rank gives up.
    split: takes groups as lists of ranks, and the index of this rank's own or -1; gives the
        callbacks of that group as a dict with the names of these arguments. Without it split()
        raises Error: Unsupported.

All are called by every rank in the same order. An exception of theirs becomes Error with code
"PeerFailed".)")
      .def_prop_ro("rank", &Communicator::rank, "This rank, from 0.")
      .def_prop_ro("size", &Communicator::size, "Ranks of the group.")
      .def_prop_ro("engine", &Communicator::engine, R"("threads", "mpi", "nccl" or "callbacks".)")
      .def("barrier", &Communicator::barrier, nb::call_guard<nb::gil_scoped_release>(),
           "Returns when every rank has called it.")
      .def("all_gather_bytes", &all_gather_bytes, nb::arg("mine"),
           nb::sig("def all_gather_bytes(self, mine: bytes) -> list[bytes]"),
           "Every rank's bytes, in rank order; lengths may differ.")
      .def(
          "split",
          [](Communicator& self, int color, int key) { return Shared(self.split(color, key)); },
          nb::arg("color"), nb::arg("key"), nb::call_guard<nb::gil_scoped_release>(),
          nb::sig("def split(self, color: int, key: int) -> Communicator | None"),
          "The ranks that pass the same color, ordered by (key, rank); None for a negative color.")
      .def(
          "abort", [](Communicator& self, const std::string& cause) { self.abort(cause); },
          nb::arg("cause"), nb::call_guard<nb::gil_scoped_release>(),
          "Tells the other ranks that this one cannot go on, and why.");
}

}  // namespace penstock::python
