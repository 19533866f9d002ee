"""HashLayout, TokenMap and NgramHasher against golden cases and the numpy reference."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import threading
from types import ModuleType
from typing import Any

import numpy as np
import penstock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def token_map_of(case: dict[str, Any]) -> penstock.TokenMap:
    """The map of a golden case."""
    if case["token_map"] == "identity":
        return penstock.TokenMap.identity(case["config"]["engram_compressed_vocab_size"])
    return penstock.TokenMap(np.array(case["token_map"], np.int32))


def batch_of(case: dict[str, Any], depth: int) -> tuple[np.ndarray, ...]:
    """token_ids, query_start, positions, lookback."""
    requests = case["requests"]
    lengths = [len(request["ids"]) for request in requests]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.array([i for request in requests for i in request["ids"]], np.int32)
    positions = np.array(
        [request["position"] + i for request in requests for i in range(len(request["ids"]))],
        np.int64)
    windows = [request.get("lookback", []) for request in requests]
    lookback = np.array([w + [-1] * (depth - len(w)) for w in windows], np.int32)
    return ids, starts, positions, lookback.reshape(len(requests), depth)


def test_layout_matches_golden_cases(golden: Any) -> None:
    for case in golden("layouts.json"):
        layout = penstock.HashLayout(case["config"])
        assert layout.primes == case["primes"]
        assert layout.offsets == case["offsets"]
        assert layout.multipliers == case["multipliers"]
        assert layout.row_counts == [sum(primes) for primes in case["primes"]]


def test_layout_takes_keys_under_text_config_beside_what_json_cannot_hold(
        golden: Any) -> None:
    case = golden("layouts.json")[0]
    config = {"dtype": object(), "text_config": {"dtype": object(), **case["config"]}}
    assert penstock.HashLayout(config).primes == case["primes"]


def test_layout_takes_numpy_integers(golden: Any) -> None:
    config = golden("layouts.json")[0]["config"]
    widened = {k: np.int64(v) if isinstance(v, int) else v for k, v in config.items()}
    assert penstock.HashLayout(widened).primes == penstock.HashLayout(config).primes


@pytest.mark.parametrize("change", [
    {"engram_n_heads": 0},
    {"engram_max_ngram_size": 1},
    {"engram_vocab_size": -5},
    {"engram_layer_ids": []},
    {"engram_head_dim": "wide"},
])
def test_layout_refuses_absurd_values(small_config: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidArgument, match=next(iter(change))):
        penstock.HashLayout({**small_config, **change})


def test_layout_refuses_missing_keys(small_config: dict[str, Any]) -> None:
    incomplete = {key: value for key, value in small_config.items() if key != "engram_n_heads"}
    with pytest.raises(penstock.InvalidArgument, match="engram_n_heads"):
        penstock.HashLayout(incomplete)
    with pytest.raises(penstock.InvalidArgument):
        penstock.HashLayout({})


def test_hasher_matches_golden_cases(golden: Any) -> None:
    for case in golden("hash.json"):
        layout = penstock.HashLayout(case["config"])
        hasher = penstock.NgramHasher(layout, token_map_of(case), case["dead_token"])
        rows = hasher(*batch_of(case, layout.lookback_depth))
        assert rows.dtype == np.int32
        np.testing.assert_array_equal(rows, np.array(case["rows"]).reshape(rows.shape))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
       dead=st.sampled_from([None, 3, 500]), offset=st.integers(0, 5))
def test_hasher_matches_reference(reference: ModuleType, small_config: dict[str, Any], seed: int,
                                  lengths: list[int], dead: int | None, offset: int) -> None:
    rng = np.random.default_rng(seed)
    token_map = rng.integers(0, 97, 97).astype(np.int32)
    requests = []
    for length in lengths:
        ids = rng.integers(0, 97, length)
        if dead is not None and length:
            ids[rng.integers(0, length)] = dead
        window = rng.integers(0, 97, 2)
        window[min(offset, 2):] = -1
        requests.append({"ids": ids.tolist(), "position": offset, "lookback": window.tolist()})
    case = {"config": small_config, "requests": requests, "token_map": token_map.tolist(),
            "dead_token": dead}
    hasher = penstock.NgramHasher(
        penstock.HashLayout(small_config), penstock.TokenMap(token_map), dead)
    rows = hasher(*batch_of(case, 2))
    np.testing.assert_array_equal(rows, reference.hash_case(case).reshape(rows.shape))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 12))
def test_any_chunking_gives_the_same_ids(small_config: dict[str, Any], seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 97, 12).astype(np.int32)
    hasher = penstock.NgramHasher(penstock.HashLayout(small_config), penstock.TokenMap.identity(97))

    def hashed(begin: int, end: int) -> np.ndarray:
        window = [ids[p] if p >= 0 else -1 for p in (begin - 1, begin - 2)]
        return hasher(ids[begin:end], np.array([0, end - begin], np.int32),
                      np.arange(begin, end), np.array([window], np.int32))

    whole = hashed(0, 12)
    np.testing.assert_array_equal(np.concatenate([hashed(0, cut), hashed(cut, 12)]), whole)


@pytest.fixture
def hasher(small_config: dict[str, Any]) -> penstock.NgramHasher:
    return penstock.NgramHasher(penstock.HashLayout(small_config), penstock.TokenMap.identity(97))


def small_batch() -> list[np.ndarray]:
    return [np.array([5, 6, 7], np.int32), np.array([0, 3], np.int32), np.arange(3),
            np.array([[-1, -1]], np.int32)]


def test_no_tokens_give_an_empty_array(hasher: penstock.NgramHasher) -> None:
    rows = hasher(np.empty(0, np.int32), np.array([0], np.int32), np.empty(0, np.int64),
                  np.empty((0, 2), np.int32))
    assert rows.shape == (0, 2, 4)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64,
                                   np.uint64])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_other_integer_widths_are_converted(hasher: penstock.NgramHasher, dtype: type,
                                            which: int) -> None:
    want = hasher(*small_batch())
    batch = small_batch()
    batch[which] = batch[which].astype(dtype)
    np.testing.assert_array_equal(hasher(*batch), want)


def test_values_that_do_not_fit_are_refused(hasher: penstock.NgramHasher) -> None:
    batch = small_batch()
    batch[0] = np.array([5, 2**31, 7], np.int64)
    with pytest.raises(penstock.InvalidArgument, match="token_ids.*2147483648"):
        hasher(*batch)
    batch = small_batch()
    batch[2] = np.array([0, 1, 2**63], np.uint64)
    with pytest.raises(penstock.InvalidArgument, match="positions.*9223372036854775808"):
        hasher(*batch)


def test_other_types_and_shapes_are_refused(hasher: penstock.NgramHasher) -> None:
    for which, bad in [(0, np.zeros(3, np.float32)), (0, np.zeros((3, 1), np.int32)),
                       (1, np.array([], np.int32)), (1, np.array([0, 4], np.int32)),
                       (2, np.arange(4)), (3, np.zeros((1, 3), np.int32)),
                       (3, np.zeros((2, 2), np.int32)), (0, np.zeros(3, bool)),
                       (0, np.array([5, 97, 1])), (0, "tokens"), (0, 3)]:
        batch: list[Any] = list(small_batch())
        batch[which] = bad
        with pytest.raises(ValueError) as caught:
            hasher(*batch)
        assert isinstance(caught.value, penstock.InvalidArgument)
        assert caught.value.code == "InvalidArgument"


def test_views_lists_and_read_only_arrays_are_read(hasher: penstock.NgramHasher) -> None:
    want = hasher(*small_batch())
    ids = np.array([5, 0, 6, 0, 7, 0], np.int32)[::2]
    assert not ids.flags.c_contiguous
    np.testing.assert_array_equal(hasher(ids, *small_batch()[1:]), want)
    backwards = np.array([7, 6, 5], np.int32)[::-1]
    np.testing.assert_array_equal(hasher(backwards, *small_batch()[1:]), want)
    batch = small_batch()
    for array in batch:
        array.flags.writeable = False
    np.testing.assert_array_equal(hasher(*batch), want)
    lists: list[Any] = [array.tolist() for array in small_batch()]
    np.testing.assert_array_equal(hasher(*lists), want)
    swapped = small_batch()[0].astype(">i4")
    with pytest.raises(penstock.InvalidArgument, match="token_ids.*>i4"):
        hasher(swapped, *small_batch()[1:])


def test_hasher_runs_on_threads_at_once(hasher: penstock.NgramHasher) -> None:
    rng = np.random.default_rng(3)
    batches = []
    for _ in range(8):
        ids = rng.integers(0, 97, 3000).astype(np.int32)
        batches.append((ids, np.array([0, 3000], np.int32), np.arange(3000),
                        np.full((1, 2), -1, np.int32)))
    want = [hasher(*batch) for batch in batches]
    gate = threading.Barrier(4)

    def work(index: int) -> None:
        gate.wait()
        for repeat in range(6):
            which = (index + repeat) % len(batches)
            np.testing.assert_array_equal(hasher(*batches[which]), want[which])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, index) for index in range(4)]:
            done.result()


def test_hasher_refuses_a_map_that_is_too_large(small_config: dict[str, Any]) -> None:
    layout = penstock.HashLayout(small_config)
    with pytest.raises(penstock.InvalidArgument):
        penstock.NgramHasher(layout, penstock.TokenMap.identity(98))
    with pytest.raises(penstock.InvalidArgument, match="dead_token_id"):
        penstock.NgramHasher(layout, penstock.TokenMap.identity(97), 2**40)


def test_token_map_ids_outlive_the_map() -> None:
    ids = penstock.TokenMap(np.array([3, 1, 3, 0], np.int64)).ids
    assert ids.dtype == np.int32
    assert ids.tolist() == [3, 1, 3, 0]
    assert not ids.flags.writeable


def test_token_map_of_arrays() -> None:
    assert penstock.TokenMap(np.array([3, 1, 3, 0], np.int32)).size == 4
    assert penstock.TokenMap.identity(5).ids.tolist() == [0, 1, 2, 3, 4]
    for bad in [np.array([1, -1], np.int32), np.array([], np.int32), np.array([[1]], np.int32),
                np.array([2**31], np.int64), np.array([1.0])]:
        with pytest.raises(penstock.InvalidArgument):
            penstock.TokenMap(bad)


def test_token_map_survives_a_file(tmp_path: pathlib.Path) -> None:
    saved = penstock.TokenMap(np.array([0, 1, 1, 2], np.int32))
    saved.save(tmp_path / "map")
    assert penstock.TokenMap.load(str(tmp_path / "map")).ids.tolist() == [0, 1, 1, 2]
    with pytest.raises(penstock.Error) as caught:
        penstock.TokenMap.load(tmp_path / "none")
    assert caught.value.code == "NotFound"
    data = bytearray((tmp_path / "map").read_bytes())
    data[-1] ^= 1
    (tmp_path / "map").write_bytes(data)
    with pytest.raises(penstock.Error) as caught:
        penstock.TokenMap.load(tmp_path / "map")
    assert caught.value.code == "CorruptFile"
    assert not isinstance(caught.value, ValueError)


# Letters, marks, blanks and signs that Unicode has had since before 9.0.
CHARACTERS = st.sampled_from("aAbBzZ09 .,-_\t\n\r\u00a0\u00e9\u00c9e\u0301\u0130\u0131\u00df\ufb01"
                             "\u03a3\u03c3\u03c2\u0391\u0410\u0430\u0451\u0439\uff21\uff41\u4e2d\u3000"
                             "\u1e9e\u212b\u2460\u00b2\U0001f600\ufffd")
TEXTS = st.text(CHARACTERS, min_size=1, max_size=4).map(lambda text: text.encode())
TOKENS = st.one_of(TEXTS, st.binary(min_size=1, max_size=3))  # whole characters, or parts of them


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(TOKENS, min_size=1, max_size=12, unique=True),
       added=st.lists(st.sampled_from(["<s>", "</S>", "</s>", " pad "]), max_size=3, unique=True),
       unused=st.integers(0, 3))
def test_token_map_matches_reference(reference: ModuleType,
                                     tmp_path_factory: pytest.TempPathFactory,
                                     tokens: list[bytes], added: list[str], unused: int) -> None:
    character = {byte: c for c, byte in reference._BYTES.items()}
    names = ["".join(character[byte] for byte in token) for token in tokens]
    document = {"model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)},
                          "merges": []},
                "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
                "added_tokens": [{"id": len(names) + i, "content": content}
                                 for i, content in enumerate(added)]}
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(document))
    size = len(names) + len(added) + unused
    got = penstock.TokenMap.from_tokenizer(path, size)
    want = reference.token_map_of_vocabulary(reference.read_vocabulary(path), vocab_size=size)
    np.testing.assert_array_equal(got.ids, want)
    assert got.size == want.max() + 1
