"""GateLinear against the golden file and a numpy reference, alone and over groups."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import penstock
import pytest
from conftest import TESTS, random_bf16, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

STRATEGIES = ["replicated", "n_shard", "weight_gather", "k_shard", "auto"]


def gate_reference(reference: ModuleType, x: np.ndarray, weight: np.ndarray, attn_out: np.ndarray,
                   gating: str = "elementwise") -> np.ndarray:
    """attn_out * sigmoid(x weight^T) in float64."""
    wide = [reference.bf16_to_float(bits).astype(np.float64) for bits in (x, weight, attn_out)]
    with np.errstate(over="ignore"):
        gate = 1 / (1 + np.exp(-(wide[0] @ wide[1].T)))
    if gating == "headwise":
        gate = np.repeat(gate, attn_out.shape[1] // weight.shape[0], axis=1)
    result: np.ndarray = wide[2] * gate
    return result


def assert_close(reference: ModuleType, bits: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(reference.bf16_to_float(bits), want, rtol=1e-2, atol=1e-2)


def on_every_rank(size: int, body: Callable[[penstock.Communicator], Any]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(body, penstock.Communicator.threads(size)))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), tokens=st.integers(0, 9), hidden=st.sampled_from([8, 33, 64]),
       heads=st.integers(1, 4), head_dim=st.integers(1, 9),
       gating=st.sampled_from(["elementwise", "headwise"]))
def test_one_rank_matches_reference(reference: ModuleType, seed: int, tokens: int, hidden: int,
                                    heads: int, head_dim: int, gating: str) -> None:
    rng = np.random.default_rng(seed)
    rows = heads if gating == "headwise" else heads * head_dim
    x, weight = random_bf16(rng, (tokens, hidden)), random_bf16(rng, (rows, hidden))
    attn_out = random_bf16(rng, (tokens, heads * head_dim))
    gate = penstock.GateLinear(weight, gating=gating)
    out = gate(x, attn_out)
    assert out.dtype == np.uint16 and out.shape == attn_out.shape
    assert_close(reference, out, gate_reference(reference, x, weight, attn_out, gating))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_strategy_over_a_group(reference: ModuleType, strategy: str, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    weight = random_bf16(rng, (24, 16))
    tokens = [3, 0, 5, 1][:ranks]
    xs = [random_bf16(rng, (t, 16)) for t in tokens]
    attns = [random_bf16(rng, (t, 24)) for t in tokens]

    def body(comm: penstock.Communicator) -> tuple[np.ndarray, np.ndarray]:
        gate = penstock.GateLinear(weight, comm, strategy)
        x, attn_out = xs[comm.rank], attns[comm.rank]
        return gate(x, attn_out), gate(x, attn_out, token_counts=np.array(tokens))

    for rank, (asked, given_counts) in enumerate(on_every_rank(ranks, body)):
        assert_close(reference, asked, gate_reference(reference, xs[rank], weight, attns[rank]))
        np.testing.assert_array_equal(asked, given_counts)


@pytest.mark.parametrize("weight_is", ["full", "rows", "columns"])
def test_a_rank_may_bring_its_part_of_the_weight(reference: ModuleType, weight_is: str) -> None:
    rng = np.random.default_rng(11)
    weight, ranks = random_bf16(rng, (24, 16)), 4
    x, attn_out = random_bf16(rng, (5, 16)), random_bf16(rng, (5, 24))

    def body(comm: penstock.Communicator) -> np.ndarray:
        part = weight
        if weight_is == "rows":
            part = weight[comm.rank * 6:(comm.rank + 1) * 6]
        if weight_is == "columns":
            part = weight[:, comm.rank * 4:(comm.rank + 1) * 4]
        strategy = "k_shard" if weight_is == "columns" else "weight_gather"
        return penstock.GateLinear(part, comm, strategy, weight_is=weight_is)(x, attn_out)

    for out in on_every_rank(ranks, body):
        assert_close(reference, out, gate_reference(reference, x, weight, attn_out))


def test_rows_that_all_ranks_have_alike(reference: ModuleType) -> None:
    rng = np.random.default_rng(12)
    weight = random_bf16(rng, (24, 16))
    x, attn_out = random_bf16(rng, (4, 16)), random_bf16(rng, (4, 24))

    def body(comm: penstock.Communicator) -> np.ndarray:
        gate = penstock.GateLinear(weight, comm, "identical_rows")
        return gate(x, attn_out, [4, 4], (0, 4))

    for out in on_every_rank(2, body):
        assert_close(reference, out, gate_reference(reference, x, weight, attn_out))


def test_golden_cases(reference: ModuleType) -> None:
    path = TESTS / "golden" / "gate_linear.safetensors"
    tensors = reference.Safetensors(path)
    cases = sorted({name.rsplit(".", 1)[0] for name in tensors.entries if name.endswith(".x")})
    assert cases
    for case in cases:
        x, weight, attn_out = (np.array(tensors[f"{case}.{part}"])
                               for part in ("x", "weight", "attn_out"))
        gating = "elementwise" if weight.shape[0] == attn_out.shape[1] else "headwise"
        out = penstock.GateLinear(weight, gating=gating)(x, attn_out)
        assert_close(reference, out, np.array(tensors[f"{case}.out"]))


def test_the_caller_may_bring_the_workspace(reference: ModuleType) -> None:
    rng = np.random.default_rng(13)
    weight, x = random_bf16(rng, (24, 16)), random_bf16(rng, (5, 16))
    attn_out = random_bf16(rng, (5, 24))
    need = penstock.GateLinear(weight).workspace_bytes(1 << 20)  # enough for a call of any size
    workspace = np.zeros(need + 512, np.uint8)
    gate = penstock.GateLinear(weight, workspace=workspace)
    assert_close(reference, gate(x, attn_out), gate_reference(reference, x, weight, attn_out))
    read_only = np.zeros(4096, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(penstock.InvalidArgument, match="workspace"):
        penstock.GateLinear(weight, workspace=read_only)


def test_what_is_wrong_on_one_rank_is_wrong_on_all() -> None:
    def body(comm: penstock.Communicator) -> str:
        dtype = np.float32 if comm.rank == 1 else np.uint16
        with pytest.raises(penstock.InvalidArgument) as caught:
            penstock.GateLinear(np.zeros((8, 8), dtype), comm)
        return str(caught.value)

    for message in on_every_rank(3, body):
        assert "rank 1" in message and "float32" in message


@pytest.mark.parametrize("arguments", [
    {"strategy": "magic"}, {"gating": "pairwise"}, {"weight_is": "half"},
])
def test_words_are_checked(arguments: dict[str, str]) -> None:
    with pytest.raises(penstock.InvalidArgument, match=next(iter(arguments))):
        penstock.GateLinear(np.zeros((8, 8), np.uint16), **arguments)


def gate_model(path: pathlib.Path, weight: np.ndarray) -> pathlib.Path:
    """A model directory with a gate at layer 3: 4 heads of 6 numbers."""
    config = {"architectures": ["HYV4ForCausalLM"], "hidden_size": weight.shape[1],
              "num_attention_heads": 4, "v_head_dim": 6, "vocab_size": 97}
    (path / "config.json").write_text(json.dumps(config))
    name = "model.layers.3.self_attn.linear_gate.weight"
    write_safetensors(path / "model.safetensors", {name: ("BF16", weight)})
    return path


def test_a_gate_opens_from_a_model_directory(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(14)
    weight, x = random_bf16(rng, (24, 16)), random_bf16(rng, (5, 16))
    attn_out = random_bf16(rng, (5, 24))
    model = gate_model(tmp_path, weight)
    want = penstock.GateLinear(weight)(x, attn_out)

    def body(comm: penstock.Communicator) -> np.ndarray:
        gate = penstock.GateLinear.open(model, 3, comm, "weight_gather", device="cpu")
        assert (gate.hidden_size, gate.output_size, gate.strategy) == (16, 24, "weight_gather")
        return gate(x, attn_out, [5, 5])

    for out in on_every_rank(2, body):
        np.testing.assert_array_equal(out, want)
    with pytest.raises(penstock.Error, match="layers.2") as caught:
        penstock.GateLinear.open(model, 2, device="cpu")
    assert caught.value.code == "NotFound"


def test_a_wrong_word_on_one_rank_opens_no_gate_anywhere(tmp_path: pathlib.Path) -> None:
    model = gate_model(tmp_path, np.zeros((24, 16), np.uint16))

    def body(comm: penstock.Communicator) -> str:
        with pytest.raises(penstock.InvalidArgument) as caught:
            penstock.GateLinear.open(model, 3, comm, "fast" if comm.rank == 1 else "auto",
                                     device="cpu")
        return str(caught.value)

    for text in on_every_rank(2, body):
        assert "rank 1" in text and "fast" in text


def test_calls_are_checked() -> None:
    gate = penstock.GateLinear(np.zeros((8, 4), np.uint16))
    x, attn_out = np.zeros((3, 4), np.uint16), np.zeros((3, 8), np.uint16)
    for arguments in [(x[:, :3], attn_out), (x, attn_out[:2]), (x, attn_out[:, :7]),
                      (x.astype(np.float32), attn_out), (x, attn_out, [2]), (x, attn_out, None, 3)]:
        with pytest.raises(penstock.InvalidArgument):
            gate(*arguments)


def test_a_gate_says_what_it_keeps() -> None:
    def body(comm: penstock.Communicator) -> tuple[tuple[int, int], int]:
        gate = penstock.GateLinear(np.zeros((10, 8), np.uint16), comm, "weight_gather")
        assert gate.strategy == "weight_gather"
        return gate.owned, gate.resident_bytes

    assert on_every_rank(4, body) == [((0, 2), 32), ((2, 5), 48), ((5, 7), 32), ((7, 10), 48)]
