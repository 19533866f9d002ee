"""The package itself: errors, stubs, typing, a whole step from tokens to hidden."""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import pickle
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import penstock
import pytest
import typing_examples
from conftest import TESTS, random_bf16

PACKAGE = pathlib.Path(inspect.getfile(penstock)).parent


def test_errors_have_a_code_and_survive_pickling() -> None:
    with pytest.raises(penstock.Error) as caught:
        penstock.column_shards([1, 1], 0)
    error = caught.value
    assert isinstance(error, penstock.InvalidArgument) and isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is penstock.InvalidArgument
    assert (copy.code, str(copy)) == (error.code, str(error))
    other = pickle.loads(pickle.dumps(penstock.Error("no such file", "NotFound")))
    assert type(other) is penstock.Error and other.code == "NotFound"


def test_everything_public_is_documented() -> None:
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        if callable(thing):
            assert thing.__doc__ and len(thing.__doc__) > 20, name


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    stub = (PACKAGE / "_penstock.pyi").read_text()
    for name in penstock.__all__:
        if name not in ("Error", "InvalidArgument", "__version__"):
            assert f"class {name}" in stub or f"def {name}(" in stub, name


def test_typed_examples_run(small_config: dict[str, Any]) -> None:
    rows = typing_examples.token_rows(small_config, np.arange(5, dtype=np.int32))
    assert rows.shape == (5, 2, 4)
    assert typing_examples.rules_broken({}) == []
    assert typing_examples.code_of(penstock.Error("x", "Timeout")) == "Timeout"


def test_import_needs_neither_torch_nor_cuda() -> None:
    code = ("import sys, penstock; "
            "assert 'torch' not in sys.modules and 'cupy' not in sys.modules; "
            "print(penstock.build_description())")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"penstock {penstock.__version__}")
    assert ran.stderr == ""


def test_the_interpreter_exits_cleanly_with_everything_alive(model_dir: pathlib.Path) -> None:
    code = f"""
import numpy as np, penstock
layer = penstock.EngramLayer.open({str(model_dir)!r}, 1, device="cpu")
table = penstock.Table.open({str(model_dir)!r}, 1, device="cpu")
group = penstock.Communicator.threads(2)
ticket = layer.prefetch(np.zeros((3, 4), np.int32))
rows = ticket.rows()
kept = [layer, table, group, ticket, rows]
kept.append(kept)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_module_can_be_found_again() -> None:
    assert importlib.import_module("penstock") is penstock


def test_a_step_from_tokens_to_hidden(model_dir: pathlib.Path, small_config: dict[str, Any],
                                      reference: ModuleType) -> None:
    config = small_config
    token_ids = np.array([5, 9, 5, 9, 40, 2, 96], np.int32)
    query_start = np.array([0, 4, 7], np.int32)
    positions = np.array([0, 1, 2, 3, 0, 1, 2], np.int64)
    lookback = np.full((2, 2), -1, np.int32)
    hidden = random_bf16(np.random.default_rng(0), (7, 2, 32))

    layout = penstock.HashLayout(config)
    token_map = penstock.TokenMap.identity(97)
    hasher = penstock.NgramHasher(layout, token_map, dead_token_id=None)
    row_ids = hasher(token_ids, query_start, positions, lookback)
    table = penstock.Table.open(model_dir, 4, shard=(0, 1), placement="auto", comm=None)
    rows = table.lookup(row_ids)
    layer = penstock.EngramLayer.open(model_dir, 4, device="cpu")
    ticket = layer.prefetch(row_ids)
    np.testing.assert_array_equal(ticket.rows(), rows)
    new_hidden = layer(hidden, ticket)

    model = reference.Safetensors(model_dir)
    np.testing.assert_array_equal(rows, reference.lookup_rows(model, 4, row_ids[:, 1]))
    assert new_hidden.shape == hidden.shape and new_hidden.dtype == np.uint16


def readme_blocks(language: str) -> list[str]:
    text = (TESTS.parent / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_the_readmes_first_script_runs(tmp_path: pathlib.Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "penstock", "make-model", "demo", "--hidden", "64",
                    "--engram-vocab-size", "500", "--layers", "1", "--tokenizer",
                    str(TESTS.parent / "examples" / "deepseek_v3_tokenizer.json.xz")],
                   check=True, capture_output=True)
    names: dict[str, Any] = {}
    exec(readme_blocks("python")[0], names)
    assert names["rows"].shape == (5, 24, 256)


def test_the_readmes_snippet_runs(model_dir: pathlib.Path, small_config: dict[str, Any],
                                  reference: ModuleType, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    tokenizer = {"model": {"type": "BPE", "vocab": {chr(0x100 + i): i for i in range(97)},
                           "merges": []}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    given = {"config": small_config, "path": tmp_path / "tokenizer.json", "model_dir": model_dir,
             "layer_id": 4, "token_ids": np.array([5, 9, 5], np.int32), "query_start": [0, 3],
             "positions": [0, 1, 2], "lookback": [[-1, -1]], "hidden": random_bf16(rng, (3, 2, 32)),
             "kv": random_bf16(rng, (3, 96)), "q_weight": random_bf16(rng, (2, 32)),
             "k_weight": random_bf16(rng, (2, 32)), "eps": 1e-6, "x": random_bf16(rng, (3, 8)),
             "weight": random_bf16(rng, (16, 8)), "attn_out": random_bf16(rng, (3, 16)),
             "deployment": {}}
    names = dict(given)
    exec(readme_blocks("python")[1], names)
    np.testing.assert_array_equal(
        names["rows"], reference.lookup_rows(reference.Safetensors(model_dir), 4,
                                             names["row_ids"][:, 1]))
    assert names["gated"].shape == (3, 16) and names["violations"] == []
