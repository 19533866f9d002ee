"""One rank of a torchrun job: a shared table and a spread gate, beside what one rank gives alone.

    torchrun --nproc-per-node 2 tests/python/torch_ranks.py MODEL_DIR

On GPUs, where there is one for each rank and penstock was built with CUDA. Prints one line a rank.
"""

from __future__ import annotations

import os
import sys

import penstock
import penstock.torch
import torch
import torch.distributed as dist


def random(shape: tuple[int, ...], seed: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(torch.bfloat16).to(device)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def check_tables(model_dir: str, comm: penstock.Communicator, device: str) -> None:
    ids = torch.arange(24, dtype=torch.int32, device=device).reshape(3, 2, 4)
    alone = penstock.Table.open(model_dir, 4, device=device,
                                placement="host" if device == "cpu" else "device")
    placements = ["host_shared"] if device == "cpu" else ["host_shared", "peer"]
    for placement in placements:
        shared = penstock.Table.open(model_dir, 4, placement=placement, comm=comm, device=device)
        assert same_bits(shared.lookup(ids), alone.lookup(ids)), placement
    status = shared.status
    assert status["placement"] == placements[-1] and not status["degraded"], status


def check_gates(comm: penstock.Communicator, device: str) -> None:
    weight = random((64, 96), 1, device)
    tokens = 5 + comm.rank
    x = random((tokens, 96), 2 + comm.rank, device)
    attn_out = random((tokens, 64), 20 + comm.rank, device)
    counts = [5 + rank for rank in range(comm.size)]
    alone = penstock.GateLinear(weight)(x, attn_out)
    strategies = ["weight_gather"] if device != "cpu" else ["n_shard", "weight_gather"]
    for strategy in strategies:
        gate = penstock.torch.GateLinear(penstock.GateLinear(weight, comm, strategy))
        assert same_bits(gate(x, attn_out, counts), alone), strategy
    if device != "cpu" and "nccl: yes" in penstock.build_description():
        nccl = penstock.Communicator.nccl(comm, device)
        for strategy in ("n_shard", "k_shard"):
            gate = penstock.torch.GateLinear(penstock.GateLinear(weight, nccl, strategy))
            torch.testing.assert_close(gate(x, attn_out, counts).float(), alone.float(), rtol=2e-2,
                                       atol=2e-2)


def check_messages(comm: penstock.Communicator) -> None:
    got = comm.all_gather_bytes(b"x" * comm.rank)
    assert got == [b"x" * rank for rank in range(comm.size)], got
    comm.barrier()
    part = comm.split(comm.rank % 2, 0)
    assert part is not None and part.size == (comm.size + 1 - comm.rank % 2) // 2
    part.barrier()


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    on_gpus = ("cuda: yes" in penstock.build_description()
               and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]))
    device = f"cuda:{rank}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    comm = penstock.torch.communicator()
    check_messages(comm)
    check_tables(sys.argv[1], comm, device)
    check_gates(comm, device)
    comm.barrier()
    print(f"rank {comm.rank} of {comm.size} on {device}: equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
