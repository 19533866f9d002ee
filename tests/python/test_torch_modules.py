"""penstock.torch: operators, modules, and a communicator over torch.distributed.

Skipped, with the reason, where torch is not installed; the GPU cases where there is no GPU.
"""

from __future__ import annotations

import copy
import gc
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import penstock
import pytest
from conftest import random_bf16
from test_torch import as_bf16, bits_of, devices

RANKS_PROGRAM = pathlib.Path(__file__).with_name("torch_ranks.py")


@pytest.fixture(scope="session")
def modules(torch: Any) -> Any:
    """penstock.torch."""
    import penstock.torch

    return penstock.torch


@pytest.fixture
def hasher(small_config: dict[str, Any]) -> penstock.NgramHasher:
    return penstock.NgramHasher(penstock.HashLayout(small_config), penstock.TokenMap.identity(97))


def step_arrays(tokens: int = 5) -> list[np.ndarray]:
    return [np.arange(3, 3 + tokens, dtype=np.int32), np.array([0, tokens], np.int32),
            np.arange(tokens, dtype=np.int64), np.full((1, 2), -1, np.int32)]


class Step:
    """Hash, prefetch, some work, injection, gate: built of the modules."""

    def __init__(self, torch: Any, modules: Any, model_dir: pathlib.Path,
                 hasher: penstock.NgramHasher, device: str) -> None:
        self.torch = torch
        self.hasher = modules.NgramHasher(hasher)
        self.layers = [modules.EngramLayer.open(model_dir, layer, device=device, max_tokens=16)
                       for layer in (1, 4)]
        weight = as_bf16(torch, random_bf16(np.random.default_rng(8), (64, 64)), device)
        self.gate = modules.GateLinear(penstock.GateLinear(weight))

    def __call__(self, hidden: Any, *batch: Any) -> Any:
        row_ids = self.hasher(*batch)
        tickets = [layer.prefetch(row_ids) for layer in self.layers]
        for layer, ticket in zip(self.layers, tickets):
            hidden = hidden + hidden * 0.5
            hidden = layer(hidden, ticket)
        flat = hidden.reshape(hidden.shape[0], -1)
        return self.gate(flat, self.torch.tanh(flat), [flat.shape[0]])


def inputs(torch: Any, device: str, seed: int = 0) -> list[Any]:
    hidden = random_bf16(np.random.default_rng(seed), (5, 2, 32))
    return [as_bf16(torch, hidden, device),
            *(torch.from_numpy(array).to(device) for array in step_arrays())]


def test_modules_give_what_their_objects_give(torch: Any, modules: Any,
                                              finite_model_dir: pathlib.Path,
                                              hasher: penstock.NgramHasher) -> None:
    want_ids = hasher(*step_arrays())
    table = penstock.Table.open(finite_model_dir, 4, device="cpu")
    for device in devices(torch):
        hidden, *batch = inputs(torch, device)
        row_ids = modules.NgramHasher(hasher)(*batch)
        np.testing.assert_array_equal(row_ids.cpu().numpy(), want_ids)
        rows = modules.Table.open(finite_model_dir, 4, device=device)(row_ids)
        np.testing.assert_array_equal(bits_of(torch, rows), table.lookup(want_ids))
        plain = penstock.EngramLayer.open(finite_model_dir, 4, device=device, max_tokens=16)
        layer = modules.EngramLayer.open(finite_model_dir, 4, device=device, max_tokens=16)
        mask = torch.tensor([True, False, True, True, False], device=device)
        got = layer(hidden, layer.prefetch(row_ids), mask)
        assert torch.equal(got, plain(hidden, plain.prefetch(row_ids), mask))
        assert torch.equal(got[1], hidden[1]) and not torch.equal(got[0], hidden[0])


def test_functions_give_what_the_package_gives(torch: Any, modules: Any) -> None:
    rng = np.random.default_rng(5)
    arrays = [random_bf16(rng, shape) for shape in [(3, 2, 8), (3, 24), (2, 8), (2, 8)]]
    codes = np.arange(256, dtype=np.uint8).reshape(4, 64)
    scales = np.full((4, 2), 127, np.uint8)
    for device in devices(torch):
        tensors = [as_bf16(torch, array, device) for array in arrays]
        assert torch.equal(modules.engram_gate(*tensors, 1e-6),
                           penstock.engram_gate(*tensors, 1e-6))
        values = torch.from_numpy(codes).to(device)
        factors = torch.from_numpy(scales).to(device)
        np.testing.assert_array_equal(bits_of(torch, modules.dequantize(values, factors)),
                                      penstock.dequantize(codes, scales))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_steps_are_whole_graphs_of_equal_bits(
        torch: Any, modules: Any, finite_model_dir: pathlib.Path, hasher: penstock.NgramHasher,
        backend: str) -> None:
    for device in devices(torch):
        step = Step(torch, modules, finite_model_dir, hasher, device)
        compiled = torch.compile(step, fullgraph=True, backend=backend)
        for seed in range(3):
            arguments = inputs(torch, device, seed)
            assert torch.equal(compiled(*arguments), step(*arguments))


def test_operators_pass_torchs_own_checks(torch: Any, modules: Any, finite_model_dir: pathlib.Path,
                                          hasher: penstock.NgramHasher) -> None:
    hidden, *batch = inputs(torch, "cpu")
    ops = torch.ops.penstock
    ids_of = modules.NgramHasher(hasher)
    table = modules.Table.open(finite_model_dir, 4, device="cpu")
    weight = as_bf16(torch, random_bf16(np.random.default_rng(8), (16, 32)), "cpu")
    gate = modules.GateLinear(penstock.GateLinear(weight))
    x = as_bf16(torch, random_bf16(np.random.default_rng(9), (5, 32)), "cpu")
    attn_out = as_bf16(torch, random_bf16(np.random.default_rng(10), (5, 16)), "cpu")
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.row_ids, (*batch, ids_of._number), test_utils=checks)
    torch.library.opcheck(ops.lookup, (ids_of(*batch), table._number), test_utils=checks)
    torch.library.opcheck(ops.gate_linear, (x, attn_out, [5], gate._number), test_utils=checks)
    kv = as_bf16(torch, random_bf16(np.random.default_rng(11), (5, 96)), "cpu")
    weights = as_bf16(torch, random_bf16(np.random.default_rng(12), (2, 32)), "cpu")
    torch.library.opcheck(ops.engram_gate, (hidden, kv, weights, weights, 1e-6, None),
                          test_utils=checks)


def test_tickets_are_used_in_their_order(torch: Any, modules: Any,
                                         finite_model_dir: pathlib.Path) -> None:
    layer = modules.EngramLayer.open(finite_model_dir, 4, device="cpu", max_tokens=8, slots=2)
    plain = penstock.EngramLayer.open(finite_model_dir, 4, device="cpu", max_tokens=8)
    hidden = as_bf16(torch, random_bf16(np.random.default_rng(0), (2, 2, 32)), "cpu")
    batches = [torch.full((2, 4), value, dtype=torch.int32) for value in (3, 4)]
    tickets = [layer.prefetch(ids) for ids in batches]
    for ids, ticket in zip(batches, tickets):
        assert torch.equal(layer(hidden, ticket), plain(hidden, plain.prefetch(ids)))
    with pytest.raises(penstock.InvalidArgument, match="no ticket"):
        layer(hidden, tickets[0])
    for _ in range(3):  # more than there are slots
        layer.prefetch(batches[0])
        layer.drop_tickets()


def test_modules_hold_no_parameters_and_let_go(torch: Any, modules: Any,
                                               finite_model_dir: pathlib.Path) -> None:
    module = modules.Table.open(finite_model_dir, 4, device="cpu")
    number = module._number
    assert list(module.parameters()) == [] and dict(module.state_dict()) == {}
    twin = copy.copy(module)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(module._handle)
    ids = torch.zeros((1, 4), dtype=torch.int32)
    del module
    gc.collect()
    assert torch.ops.penstock.lookup(ids, number).shape == (1, 4, 64)  # the copy is alive
    del twin
    gc.collect()
    with pytest.raises(penstock.InvalidArgument, match="no Table"):
        torch.ops.penstock.lookup(ids, number)


def test_a_communicator_needs_a_process_group(modules: Any) -> None:
    with pytest.raises(penstock.Error, match="init_process_group") as caught:
        modules.communicator()
    assert caught.value.code == "NotFound"


def test_two_processes_over_torch_distributed(torch: Any, finite_model_dir: pathlib.Path) -> None:
    ran = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                          "--rdzv-backend", "c10d",
                          "--rdzv-endpoint", "localhost:0", str(RANKS_PROGRAM),
                          str(finite_model_dir)],
                         capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("equal") == 2, ran.stdout


def cuda(torch: Any) -> None:
    if "cuda" not in devices(torch):
        pytest.skip("no GPU, or a penstock without CUDA")


def test_one_graph_serves_many_steps(torch: Any, modules: Any, finite_model_dir: pathlib.Path,
                                     hasher: penstock.NgramHasher) -> None:
    cuda(torch)
    step = Step(torch, modules, finite_model_dir, hasher, "cuda")
    static = inputs(torch, "cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*static)
    for seed in range(5):
        arguments = inputs(torch, "cuda", seed)
        arguments[1] = arguments[1] + seed
        for target, source in zip(static, arguments):
            target.copy_(source)
        graph.replay()
        got = out.clone()
        assert torch.equal(got, step(*arguments)), seed


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_on_a_gpu(torch: Any, modules: Any, finite_model_dir: pathlib.Path,
                           hasher: penstock.NgramHasher, mode: str) -> None:
    cuda(torch)
    step = Step(torch, modules, finite_model_dir, hasher, "cuda")
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    for seed in range(6):
        arguments = inputs(torch, "cuda", seed)
        got = compiled(*arguments).clone().float()
        want = step(*arguments).float()
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
