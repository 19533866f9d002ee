"""One table for many processes: replicas on a machine read one copy in shared memory.

    python examples/python/03_one_table_many_processes.py demo        # starts 4 processes
    mpirun -n 4 python examples/python/03_one_table_many_processes.py demo
"""

import os
import pathlib
import sys

import numpy as np
import penstock

model = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "demo")

# Without a launcher, this program launches itself: each process gets variables with its rank.
if not {"PENSTOCK_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"} & set(os.environ):
    result = penstock.launch_processes([sys.executable, __file__, str(model)], 4,
                                       on_stderr=lambda rank, line: print(f"{rank}: {line}"))
    sys.exit(f"{result.first_failure}" if result.first_failure else 0)

# Every process of the job meets the others here; neither MPI nor torch is needed.
comm = penstock.Communicator.join_launch()

# One rank creates the memory and loads it, then seals it; the others map it read-only.
layer = 1
table = penstock.Table.open(model, layer, placement="host_shared", comm=comm, device="cpu")

# Every rank reads whatever rows it likes, without asking the others.
rng = np.random.default_rng(comm.rank)
columns = table.columns[1] - table.columns[0]
row_ids = rng.integers(0, table.num_rows, (1000, columns), dtype=np.int32)
rows = table.lookup(row_ids)

# The same from a table of this process alone: the checkpoint's own pages.
alone = penstock.Table.open(model, layer, placement="file", device="cpu")
assert np.array_equal(rows, alone.lookup(row_ids)), f"rank {comm.rank} read other rows"

equal = comm.all_gather_bytes(b"%d rows are equal" % (len(row_ids) * columns))
if comm.rank == 0:
    shared = table.status["shared_bytes"] / 2**20
    print(f"one copy of {shared:.0f} MiB for {comm.size} processes ({table.status['backing']})")
    for rank, text in enumerate(equal):
        print(f"rank {rank}: {text.decode()}")
