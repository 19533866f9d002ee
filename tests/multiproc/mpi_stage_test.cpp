// Run by mpirun: every rank runs every test. Engram layers over ranks that are processes of MPI.

#include <gtest/gtest.h>
#include <mpi.h>

#include "engram/stage_deployment.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock {
namespace {

TEST(MpiStage, GivesTheRowsOfTheUnshardedTableInASampleOfDeployments) {
  const auto world = make_mpi_communicator();
  // A deployment costs the more the more ranks there are, and there are more uses of them.
  const std::size_t num_columns = world->size() < 8 ? 2 : 1;
  test::check_sample(*world, world->size(), num_columns);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
