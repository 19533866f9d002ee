"""One step of a decoder over ranks: Engram at two layers, a gated attention output.

What an engine does with Penstock, and nothing else: hash the tokens, start the reads of all Engram
layers at step entry, run the layers, take the rows where they are needed. Every rank has requests
of its own; all ranks of the machine share one copy of each table and spread one gate. The hidden
states are compared, bit for bit, with those of the same step on whole tables and whole weights.

    penstock make-model engram --hidden 128 --engram-vocab-size 4000 \\
        --tokenizer examples/deepseek_v3_tokenizer.json.xz
    penstock make-model gates --like hy-v4 --hidden 128 --heads 4 --v-head-dim 64 --layers 14

    python reference_step.py engram gates --ranks 8                     # numpy, host_shared
    mpirun -n 8 python reference_step.py engram gates
    torchrun --nproc-per-node 2 reference_step.py engram gates --device cuda --placement peer --graph

Exit code 1 if a rank's hidden states differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import numpy as np
import penstock
from plain_layers import NumpyLayers, TorchLayers

TOKENS = pathlib.Path(__file__).parent.parent / "tokens" / "requests.json"
LAUNCHERS = ("PENSTOCK_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


@dataclasses.dataclass
class Batch:
    """The tokens of one rank in one step."""

    token_ids: Any
    query_start: Any
    positions: Any
    lookback: Any

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        return self.token_ids, self.query_start, self.positions, self.lookback


def batch_of(requests: list[list[int]], depth: int, layers: Any) -> Batch:
    """Whole prompts from their first token, so nothing is known before them."""
    lengths = [len(request) for request in requests]
    positions = [np.arange(length, dtype=np.int64) for length in lengths]
    return Batch(
        layers.array(np.array([token for request in requests for token in request], np.int32)),
        layers.array(np.cumsum([0, *lengths]).astype(np.int32)),
        layers.array(np.concatenate([*positions, np.zeros(0, np.int64)])),
        layers.array(np.full((len(requests), depth), -1, np.int32)))


class HostClock:
    """How long a read took on its own thread, and how long the step stood waiting for it."""

    def wait(self, ticket: penstock.Ticket) -> tuple[float, float]:
        ticket.rows()
        return ticket.read_seconds, ticket.wait_seconds


class CudaClock:
    """The wait between two events; the read alone, between two others with nothing beside it."""

    def __init__(self, torch: Any, alone: dict[int, float]) -> None:
        self.torch, self.alone = torch, alone
        self.events: list[tuple[Any, Any]] = []

    def wait(self, ticket: penstock.Ticket) -> tuple[float, float]:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        ticket.rows()
        end.record()
        self.events.append((begin, end))
        return 0.0, 0.0

    def times(self, layer_ids: list[int]) -> dict[int, tuple[float, float]]:
        self.torch.cuda.synchronize()
        return {layer: (self.alone[layer], begin.elapsed_time(end) / 1e3)
                for layer, (begin, end) in zip(layer_ids, self.events)}


class Step:
    """The decoder. What is before the loop and at the Engram layers is all there is to copy."""

    def __init__(self, layers: Any, depth: int, hasher: penstock.NgramHasher,
                 engram: dict[int, penstock.EngramLayer], gates: dict[int, penstock.GateLinear],
                 token_counts: list[int]) -> None:
        self.layers, self.depth, self.hasher = layers, depth, hasher
        self.engram, self.gates, self.token_counts = engram, gates, token_counts

    def __call__(self, batch: Batch, clock: Any = None) -> tuple[Any, dict[int, Any]]:
        """The hidden states, and (read, wait) in seconds by layer if a clock is given."""
        row_ids = self.hasher(*batch.arrays())
        tickets = {i: layer.prefetch(row_ids) for i, layer in self.engram.items()}
        times = {}
        hidden = self.layers.embed(batch.token_ids)
        for i in range(self.depth):
            if i in self.engram:
                ticket = tickets.pop(i)
                if clock is not None:
                    times[i] = clock.wait(ticket)
                hidden = self.engram[i](hidden, ticket)
            if i in self.gates:
                x = self.layers.normed(hidden)
                attn_out = self.layers.attention(x, batch.query_start)
                gated = self.gates[i](x, attn_out, self.token_counts)
                hidden = self.layers.project_attention(hidden, gated)
            hidden = self.layers.mlp(hidden)
        return hidden, times


class Job:
    """This rank's part of the job: its tokens, and the step on shared and on whole weights."""

    def __init__(self, options: argparse.Namespace, comm: penstock.Communicator | None) -> None:
        self.options, self.comm = options, comm
        self.rank, self.size = (comm.rank, comm.size) if comm else (0, 1)
        self.device = "cpu"
        if options.device == "cuda":
            import torch

            if torch.cuda.device_count() == 0:
                sys.exit("reference_step: found no GPU, needs one or --device cpu")
            self.device = f"cuda:{self.rank % torch.cuda.device_count()}"
            torch.cuda.set_device(self.device)
        config = json.loads((options.engram_model / "config.json").read_text())
        config = config.get("text_config", config)
        self.layout = penstock.HashLayout(config)
        gate_layers = options.gate_layers
        whole = {i: penstock.GateLinear.open(options.gate_model, i, device=self.device)
                 for i in gate_layers}
        width = max((gate.output_size for gate in whole.values()), default=1)
        hc, dim = config.get("hc_mult", 4), config["hidden_size"]
        if options.math == "torch":
            self.layers: Any = TorchLayers(hc, dim, width, self.device)
        else:
            self.layers = NumpyLayers(hc, dim, width)
        pieces = [request[i:i + options.length] for request in json.loads(options.tokens.read_text())
                  for i in range(0, len(request), options.length)]
        self.batch = batch_of(pieces[self.rank::self.size][:options.requests],
                              self.layout.lookback_depth, self.layers)
        self.token_counts = [int(text) for text in self.gather(str(len(self.batch.token_ids)))]
        self.depth = max(*self.layout.layer_ids, *gate_layers) + 1
        token_map = penstock.TokenMap.from_tokenizer(options.engram_model / "tokenizer.json",
                                                     config["vocab_size"])
        self.hasher = penstock.NgramHasher(self.layout, token_map)
        self.shared = self.step(options.placement, comm, {
            i: penstock.GateLinear.open(options.gate_model, i, comm, options.strategy,
                                        device=self.device) for i in gate_layers})
        self.whole = self.step("file" if self.device == "cpu" else "device", None, whole)

    def step(self, placement: str, comm: penstock.Communicator | None,
             gates: dict[int, penstock.GateLinear]) -> Step:
        engram = {i: penstock.EngramLayer.open(
            self.options.engram_model, i, placement, comm, max_tokens=max(1, *self.token_counts),
            device=self.device) for i in self.layout.layer_ids}
        counts = self.token_counts if comm else [self.token_counts[self.rank]]
        return Step(self.layers, self.depth, self.hasher, engram, gates, counts)

    def gather(self, text: str) -> list[str]:
        return [data.decode() for data in self.comm.all_gather_bytes(text.encode())] \
            if self.comm else [text]

    def digest(self, hidden: Any) -> str:
        return hashlib.sha256(self.layers.bits(hidden).tobytes()).hexdigest()

    def run(self) -> dict[str, Any]:
        """What this rank has to report."""
        for _ in range(self.options.steps):
            clock = self.cuda_clock() if self.device != "cpu" else HostClock()
            begin = time.perf_counter()
            hidden, times = self.shared(self.batch, clock)
            if isinstance(clock, CudaClock):
                times = clock.times(self.layout.layer_ids)
            seconds = time.perf_counter() - begin
        report = {"rank": self.rank, "device": self.device, "seconds": seconds,
                  "tokens": len(self.batch.token_ids), "times": times,
                  "shared": self.digest(hidden), "whole": self.digest(self.whole(self.batch)[0])}
        if self.options.graph:
            report["graph"] = self.digest(self.replay())
        return report

    def cuda_clock(self) -> CudaClock:
        import torch

        row_ids = self.hasher(*self.batch.arrays())
        alone = CudaClock(torch, {})
        for layer in self.shared.engram.values():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            ticket = layer.prefetch(row_ids)
            ticket.rows()
            end.record()
            alone.events.append((begin, end))
            del ticket
        alone.alone = dict.fromkeys(self.layout.layer_ids, 0.0)
        reads = alone.times(self.layout.layer_ids)
        return CudaClock(torch, {layer: seconds for layer, (_, seconds) in reads.items()})

    def replay(self) -> Any:
        """The step, reads and all, captured in one CUDA graph and replayed."""
        import torch

        self.gather("")  # ranks capture together: the gate's weight may travel between them
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            hidden, _ = self.shared(self.batch)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        return hidden.clone()


def print_reports(reports: list[dict[str, Any]]) -> bool:
    """One line for each rank and read; whether all hidden states are equal."""
    is_equal = True
    for report in reports:
        digests = [report[key] for key in ("shared", "whole", "graph") if key in report]
        is_equal = is_equal and len(set(digests)) == 1
        texts = " ".join(f"{key} {report[key][:16]}" for key in ("shared", "whole", "graph")
                         if key in report)
        print(f"rank {report['rank']} on {report['device']}: {report['tokens']} tokens, "
              f"{report['seconds'] * 1e3:.1f} ms, hidden states: {texts}, "
              f"{'equal' if len(set(digests)) == 1 else 'DIFFERENT'}")
        for layer, (read, wait) in report["times"].items():
            hidden = 100 * max(0.0, 1 - wait / read) if read > 0 else 100.0
            print(f"  read of layer {layer}: {read * 1e6:.0f} us, waited {wait * 1e6:.0f} us, "
                  f"{hidden:.0f} % hidden")
    return is_equal


def communicator(name: str) -> penstock.Communicator | None:
    if name == "torch":
        importlib.import_module("torch.distributed").init_process_group("gloo")
        comm: penstock.Communicator = importlib.import_module("penstock.torch").communicator()
        return comm
    if name == "mpi":
        return penstock.Communicator.mpi()
    is_job = any(variable in os.environ for variable in LAUNCHERS)
    return penstock.Communicator.join_launch() if is_job else None


def launch(ranks: int) -> int:
    """This program again, once for each rank."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    result = penstock.launch_processes(
        [sys.executable, *sys.argv, "--ranks", "1"], ranks,
        environment={"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
        on_stderr=lambda rank, line: print(f"rank {rank}: {line}", file=sys.stderr))
    return 0 if result.first_failure is None else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engram_model", type=pathlib.Path)
    parser.add_argument("gate_model", type=pathlib.Path)
    parser.add_argument("--gate-layers", type=int, nargs="*", default=[14])
    parser.add_argument("--tokens", type=pathlib.Path, default=TOKENS, help="JSON arrays of ids")
    parser.add_argument("--requests", type=int, default=4, help="of each rank, at most")
    parser.add_argument("--length", type=int, default=128, help="texts are cut into requests of so many")
    parser.add_argument("--steps", type=int, default=3, help="the last one is timed")
    parser.add_argument("--ranks", type=int, default=1, help="start this many processes")
    parser.add_argument("--placement", default="host_shared")
    parser.add_argument("--strategy", default="weight_gather")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--math", choices=["numpy", "torch"], help="default: torch on GPUs only")
    parser.add_argument("--communicator", choices=["launch", "torch", "mpi"], default="launch")
    parser.add_argument("--graph", action="store_true", help="also as one CUDA graph")
    options = parser.parse_args()
    if options.ranks > 1:
        return launch(options.ranks)
    options.math = options.math or ("torch" if options.device == "cuda" else "numpy")
    job = Job(options, communicator(options.communicator))
    reports = [json.loads(text) for text in job.gather(json.dumps(job.run()))]
    is_equal = print_reports(reports) if job.rank == 0 else True
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
