#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/table/table.hpp"
#include "support/vector_rows.hpp"
#include "table/sharing/fault_injection.hpp"

// Tables of host_shared, opened by ranks that are threads.
namespace penstock::test {

/// What a rank got: a table, or an error.
struct OpenedTable {
  std::optional<Table> table;
  std::optional<ErrorCode> code;
  std::string message;
};

/// Changes what one rank asks for.
using OptionsOfRank = std::function<void(int rank, TableSpec& spec, TableOptions& options)>;

/// Opens one table on every rank of a thread group.
inline std::vector<OpenedTable> open_on_ranks(int ranks, const TableSpec& spec,
                                              const std::shared_ptr<const RowSource>& rows,
                                              const OptionsOfRank& change = {},
                                              const CommOptions& comm_options = {}) {
  std::vector<OpenedTable> outcomes(static_cast<std::size_t>(ranks));
  run_thread_group(
      ranks,
      [&](Communicator& comm) {
        TableSpec mine = spec;
        TableOptions options{.placement = Placement::HostShared, .group = &comm};
        if (change) change(comm.rank(), mine, options);
        auto& outcome = outcomes[static_cast<std::size_t>(comm.rank())];
        try {
          outcome.table = Table::open(mine, rows, options);
        } catch (const Error& error) {
          outcome.code = error.code();
          outcome.message = error.what();
        }
      },
      comm_options);
  return outcomes;
}

inline std::shared_ptr<VectorRows> make_rows() {
  return std::make_shared<VectorRows>(make_whole_table(64, {101, 103, 107}));
}

/// For tests that put a fault in the way of an opening: none is left after them.
template <typename Test>
class WithoutFaultsAfter : public Test {
 protected:
  ~WithoutFaultsAfter() override { detail::set_fault_hook({}); }
};

}  // namespace penstock::test
