"""What the Python tests share: the independent reference, golden cases, small model directories."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import struct
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# The same cases in every run.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

TESTS = pathlib.Path(__file__).resolve().parent.parent


def _load_reference() -> ModuleType:
    path = TESTS / "reference" / "engram_reference.py"
    spec = importlib.util.spec_from_file_location("engram_reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["engram_reference"] = module
    spec.loader.exec_module(module)
    return module


_REFERENCE = _load_reference()

# Tables of 2 + 2 columns per order and layer, small enough to be written in a moment.
SMALL_CONFIG: dict[str, Any] = {
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 3,
    "engram_n_heads": 2,
    "engram_head_dim": 64,
    "engram_vocab_size": 50,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 97,
    "hidden_size": 32,
    "hc_mult": 2,
    "rms_norm_eps": 1e-6,
}
SMALL_CONFIG["engram_num_embeddings"] = _REFERENCE.layout(SMALL_CONFIG).row_counts


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """tests/reference/engram_reference.py."""
    return _REFERENCE


@pytest.fixture(scope="session")
def golden() -> Any:
    """Reads tests/golden/<name>."""
    return lambda name: json.loads((TESTS / "golden" / name).read_text())


@pytest.fixture(scope="session")
def small_config() -> dict[str, Any]:
    return dict(SMALL_CONFIG)


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Writes arrays under the names of dtypes that numpy does not have."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def random_bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    bits: np.ndarray = _REFERENCE.float_to_bf16(rng.standard_normal(shape).astype(np.float32))
    return bits


def write_model(path: pathlib.Path, is_finite: bool) -> pathlib.Path:
    """Writes a model directory of SMALL_CONFIG with random tables and weights."""
    config = {"architectures": ["DeepseekV41ForCausalLM"], "vocab_size": 97, **SMALL_CONFIG}
    (path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(7)
    hc, dim, head_dim = config["hc_mult"], config["hidden_size"], config["engram_head_dim"]
    columns = (config["engram_max_ngram_size"] - 1) * config["engram_n_heads"]
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for layer, rows in zip(config["engram_layer_ids"], config["engram_num_embeddings"]):
        prefix = f"layers.{layer}.engram."
        # Else every code, NaN and zero among them; scales from the smallest to the largest.
        codes = (0, 120) if is_finite else (0, 256)
        exponents = (118, 124) if is_finite else (0, 256)
        tensors[prefix + "embed.weight"] = (
            "F8_E4M3", rng.integers(*codes, (rows, head_dim), dtype=np.uint8))
        tensors[prefix + "embed.scale"] = (
            "F8_E8M0", rng.integers(*exponents, (rows, head_dim // 32), dtype=np.uint8))
        tensors[prefix + "wkv.weight"] = (
            "BF16", random_bf16(rng, ((hc + 1) * dim, columns * head_dim)))
        tensors[prefix + "q_weight"] = ("BF16", random_bf16(rng, (hc, dim)))
        tensors[prefix + "k_weight"] = ("BF16", random_bf16(rng, (hc, dim)))
    write_safetensors(path / "model.safetensors", tensors)
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model directory of SMALL_CONFIG whose rows hold every code and scale."""
    return write_model(tmp_path_factory.mktemp("model"), is_finite=False)


@pytest.fixture(scope="session")
def finite_model_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model directory of SMALL_CONFIG whose rows are finite numbers around 1."""
    return write_model(tmp_path_factory.mktemp("finite_model"), is_finite=True)


@pytest.fixture(scope="session")
def torch() -> Any:
    """torch, for the tests that need it."""
    return pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
