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
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

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

// A Python function that C++ may copy, call and destroy without the GIL.
class PythonCall {
 public:
  explicit PythonCall(nb::object function)
      : function_(new nb::object(std::move(function)), [](nb::object* object) {
          const nb::gil_scoped_acquire acquire;
          delete object;
        }) {}

  /// Calls `body` with the function and the GIL. A Python exception becomes its text, since it must
  /// not travel where there is no GIL.
  template <typename Body>
  auto operator()(const Body& body) const {
    const nb::gil_scoped_acquire acquire;
    try {
      return body(*function_);
    } catch (const nb::python_error& error) {
      throw std::runtime_error(error.what());
    } catch (const nb::cast_error&) {
      throw std::runtime_error("a callback returned something else than a list of bytes");
    }
  }

 private:
  std::shared_ptr<nb::object> function_;
};

std::vector<std::vector<std::byte>> list_of_bytes(nb::handle answer) {
  std::vector<std::vector<std::byte>> out;
  for (const nb::handle item : nb::cast<nb::list>(answer)) out.push_back(from_bytes(item));
  return out;
}

Shared from_callbacks(int rank, int size, nb::object all_gather_bytes, nb::object barrier,
                      nb::object all_to_all_bytes, nb::object abort) {
  CommCallbacks callbacks;
  callbacks.all_gather =
      [call = PythonCall(std::move(all_gather_bytes))](std::span<const std::byte> mine) {
        return call(
            [&](const nb::object& function) { return list_of_bytes(function(as_bytes(mine))); });
      };
  if (!barrier.is_none()) {
    callbacks.barrier = [call = PythonCall(std::move(barrier))] {
      call([](const nb::object& function) { function(); });
    };
  }
  if (!all_to_all_bytes.is_none()) {
    callbacks.all_to_all = [call = PythonCall(std::move(all_to_all_bytes))](
                               const std::vector<CommCallbacks::Bytes>& for_each_rank) {
      return call([&](const nb::object& function) {
        nb::list blocks;
        for (const auto& block : for_each_rank) blocks.append(as_bytes(block));
        return list_of_bytes(function(blocks));
      });
    };
  }
  if (!abort.is_none()) {
    callbacks.abort = [call = PythonCall(std::move(abort))](std::string_view cause) {
      try {
        call([&](const nb::object& function) { function(std::string(cause)); });
      } catch (const std::exception&) {
        return;  // the group is being given up; there is nobody left to tell
      }
    };
  }
  const nb::gil_scoped_release release;
  return make_callback_communicator(rank, size, std::move(callbacks));
}

std::vector<Shared> thread_group(int n, double deadline_seconds) {
  CommOptions options;
  options.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(deadline_seconds * 1000));
  std::vector<Shared> out;
  for (auto& rank : make_thread_group(n, options)) out.emplace_back(std::move(rank));
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
      .def_static("callbacks", &from_callbacks, nb::arg("rank"), nb::arg("size"),
                  nb::arg("all_gather_bytes"), nb::arg("barrier") = nb::none(),
                  nb::arg("all_to_all_bytes") = nb::none(), nb::arg("abort") = nb::none(),
                  nb::sig("def callbacks(rank: int, size: int, all_gather_bytes: "
                          "collections.abc.Callable[[bytes], list[bytes]], barrier: "
                          "collections.abc.Callable[[], None] | None = None, all_to_all_bytes: "
                          "collections.abc.Callable[[list[bytes]], list[bytes]] | None = None, "
                          "abort: collections.abc.Callable[[str], None] | None = None) -> "
                          "Communicator"),
                  R"(A communicator made of a framework's own collectives.

Args:
    all_gather_bytes: gives every rank's bytes, whose lengths may differ, in rank order.
    barrier: returns when every rank has called it; made from all_gather_bytes if None.
    all_to_all_bytes: takes a block for each rank, gives one from each.
    abort: told the cause when this rank gives up.

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
