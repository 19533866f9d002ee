// Run by mpirun: every rank runs every test, each with a fresh communicator over all ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <string>

#include "comm/communicator_contract.hpp"
#include "core/environment.hpp"

namespace penstock::contract {
namespace {

/// Known before MPI is: tests are listed before main begins.
int world_size() {
  const auto size = environment_variable("OMPI_COMM_WORLD_SIZE");
  return size ? std::atoi(size->c_str()) : 1;
}

std::vector<Backend> all_ranks(int at_least) {
  if (world_size() < at_least) return {};
  return {{.name = "mpi" + std::to_string(world_size()),
           .size = world_size(),
           .run = [](int, const CommOptions& options, const RankBody& body) {
             body(make_mpi_communicator(options));
           }}};
}

TEST(MpiCommunicator, NamesItsEngine) {
  const auto comm = make_mpi_communicator();
  EXPECT_EQ(comm->engine(), "mpi");
  EXPECT_EQ(comm->split(0, 0)->engine(), "mpi");
}

TEST(MpiCommunicator, KeepsGroupsApart) {
  const auto first = make_mpi_communicator();
  const auto second = make_mpi_communicator();
  const auto part = first->split(first->rank() / 2, 0);
  for (int round = 0; round < 20; ++round) {
    expect_usable(*part);
    expect_usable(round % 2 == 0 ? *first : *second);
    expect_usable(round % 2 == 0 ? *second : *first);
  }
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorContract, testing::ValuesIn(all_ranks(1)), backend_name);
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorPeersContract, testing::ValuesIn(all_ranks(2)),
                         backend_name);
// With one rank there are no peers, and the suite is empty on purpose.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorPeersContract);

}  // namespace
}  // namespace penstock::contract

int main(int argc, char** argv) {
  // Begun and ended here, so that ranks that failed on purpose still end in good order.
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
