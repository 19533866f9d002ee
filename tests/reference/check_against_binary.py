#!/usr/bin/env python3
"""Compares the penstock command with the numpy reference, on golden and on random cases.

Needs numpy. Prints one line per check; the exit status is 1 if any of them fails.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import engram_reference as reference

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"


class Binary:
    """The command under test, with a folder for its inputs."""

    def __init__(self, path: str, folder: pathlib.Path):
        self.path, self.folder = path, folder

    def run(self, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True, timeout=300)

    def write(self, name: str, content) -> pathlib.Path:
        file = self.folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    def hash(self, config, case) -> subprocess.CompletedProcess:
        return self.run("hash", self.write("config.json", config), "--batch",
                        self.write("batch.json", case), "--json")

    def hash_rows(self, config: dict, case: dict) -> np.ndarray:
        result = self.hash(config, case)
        if result.returncode != 0:
            raise RuntimeError(result.stderr.strip())
        return np.array(json.loads(result.stdout)["rows"], dtype=np.int64)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Also equal if neither has a token: JSON does not keep the other dimensions then."""
    return np.array_equal(found, expected) or found.size == expected.size == 0


# --- hash ---------------------------------------------------------------------------------------


def check_golden_hash(binary: Binary) -> bool:
    cases = json.loads((GOLDEN / "hash.json").read_text())
    return all(same(binary.hash_rows(case["config"], case), np.array(case["rows"])) for case in cases)


def random_config(random: np.random.Generator) -> dict:
    heads, orders = int(random.integers(1, 7)), int(random.integers(1, 5))
    layers = sorted(random.choice(60, size=random.integers(1, 4), replace=False).tolist())
    config = {
        "engram_layer_ids": layers, "engram_num_embeddings": [1] * len(layers),
        "engram_max_ngram_size": orders + 1, "engram_n_heads": heads, "engram_head_dim": 32,
        "engram_vocab_size": int(random.choice([1, 7, 61, 1000, 131072])), "engram_pad_token_id": 1,
        "engram_compressed_vocab_size": int(random.choice([2, 40, 512])),
    }
    config["engram_num_embeddings"] = reference.layout(config).row_counts
    return {"text_config": config} if random.integers(2) else config


def random_case(random: np.random.Generator, config: dict) -> dict:
    keys = reference.engram_keys(config)
    compressed, depth = keys["engram_compressed_vocab_size"], keys["engram_max_ngram_size"] - 1
    tokens = compressed + int(random.integers(0, 30))
    token_map = random.integers(0, compressed, size=tokens).tolist()
    dead = [None, int(random.integers(tokens)), 129264][random.integers(3)]

    def draw(count: int) -> list[int]:
        ids = random.integers(0, tokens, size=count)
        if dead is not None:
            ids[random.random(count) < 0.2] = dead
        return ids.tolist()

    requests = []
    for _ in range(random.integers(0, 5)):
        request = {"ids": draw(int(random.integers(0, 25))), "position": int(random.integers(0, 9))}
        lookback = [-1 if random.random() < 0.2 else id_ for id_ in draw(int(random.integers(0, depth + 1)))]
        if lookback or random.integers(2):
            request["lookback"] = lookback
        requests.append(request)
    return {"requests": requests, "token_map": token_map, "dead_token": dead}


def check_random_hash(binary: Binary, seed: int, rounds: int) -> bool:
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        config = random_config(random)
        case = random_case(random, config)
        if not same(binary.hash_rows(config, case), reference.hash_case(case, config)):
            binary.write("failed_config.json", config)
            binary.write("failed_batch.json", case)
            return False
    return True


def check_chunks(binary: Binary, seed: int, rounds: int) -> bool:
    """A sequence in chunks with windows, and whole."""
    random = np.random.default_rng(seed)
    config = json.loads((GOLDEN / "layouts.json").read_text())[0]["config"]
    for _ in range(rounds):
        ids = random.integers(0, 99092, size=60)
        ids[random.random(60) < 0.1] = reference.IMAGE_TOKEN
        cuts = [0, *sorted(random.integers(0, 61, size=5).tolist()), 60]
        requests = [
            {"ids": ids[a:b].tolist(), "position": a, "lookback": ids[:a][::-1][:3].tolist()}
            for a, b in zip(cuts, cuts[1:])
        ]
        found = binary.hash_rows(config, {"requests": requests, "dead_token": reference.IMAGE_TOKEN})
        whole = reference.hash_request(reference.layout(config), np.arange(99092), reference.IMAGE_TOKEN, ids)
        if not same(found, whole):
            return False
    return True


def check_map_file(binary: Binary) -> bool:
    """A token map written here, byte by byte as documented."""
    config = json.loads((GOLDEN / "layouts.json").read_text())[1]["config"]
    ids = np.random.default_rng(5).integers(0, 64, size=200)
    (binary.folder / "some.map").write_bytes(reference.encode_token_map(ids, "made by a test"))
    case = {"requests": [{"ids": list(range(200))}], "token_map": ids.tolist()}
    return same(binary.hash_rows(config, {**case, "token_map": "some.map"}), reference.hash_case(case, config))


def check_corpora(binary: Binary) -> bool:
    """Real tokens through the real tokenizer's map: the head of each corpus."""
    config = json.loads((GOLDEN / "layouts.json").read_text())[0]["config"]
    tokenizer = GOLDEN / "deepseek_v3_tokenizer.json.xz"
    token_map = reference.token_map_of_vocabulary(reference.read_vocabulary(tokenizer))
    corpora = reference.Safetensors(GOLDEN / "corpus_tokens.safetensors")
    for name in sorted(corpora.entries):
        ids = corpora[name][:2000]
        case = {"requests": [{"ids": ids.tolist()}], "token_map": str(tokenizer), "dead_token": 129264}
        expected = reference.hash_request(reference.layout(config), token_map, 129264, ids)
        if not same(binary.hash_rows(config, case), expected):
            return False
    return True


def check_bad_input(binary: Binary) -> bool:
    """Each is exit status 3, nothing on stdout, one last line that says what is wrong."""
    config = json.loads((GOLDEN / "layouts.json").read_text())[1]["config"]
    good = {"requests": [{"ids": [1, 2], "position": 0}], "token_map": "identity", "dead_token": None}
    bad = [
        "", "[", "[]", "null", '{"requests": [], "requests": []}', {},
        {**good, "requests": 3}, {**good, "unknown": 1}, {**good, "token_map": [0, -1]},
        {**good, "token_map": "missing.map"}, {**good, "token_map": 7}, {**good, "dead_token": -1},
        {**good, "dead_token": "x"}, {**good, "requests": [{"position": 0}]},
        {**good, "requests": [{"ids": [64]}]}, {**good, "requests": [{"ids": [-1]}]},
        {**good, "requests": [{"ids": [1.5]}]}, {**good, "requests": [{"ids": [2**63]}]},
        {**good, "requests": [{"ids": [True]}]}, {**good, "requests": [{"ids": [1], "position": -1}]},
        {**good, "requests": [{"ids": [1], "lookback": [1, 2, 3]}]},
        {**good, "requests": [{"ids": [1], "position": 3, "lookback": [999]}]},
    ]
    for case in bad:
        result = binary.hash(config, case)
        last = result.stderr.strip().split("\n")[-1]
        if result.returncode != 3 or result.stdout or not last.startswith("penstock: error: "):
            print(f"  {case}: exit {result.returncode}, stderr {result.stderr!r}")
            return False
    return binary.hash(config, good).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="the penstock command")
    parser.add_argument("--rounds", type=int, default=20, help="random cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        binary = Binary(options.binary, pathlib.Path(folder))
        checks = {
            "reference against tests/golden": lambda: not reference.self_check(GOLDEN),
            "hash: golden cases": lambda: check_golden_hash(binary),
            "hash: random cases": lambda: check_random_hash(binary, options.seed, options.rounds),
            "hash: chunks and windows": lambda: check_chunks(binary, options.seed, options.rounds),
            "hash: token map file": lambda: check_map_file(binary),
            "hash: real tokens": lambda: check_corpora(binary),
            "hash: bad input": lambda: check_bad_input(binary),
        }
        results = {}
        for name, check in checks.items():
            results[name] = check()
            print(f"{'ok  ' if results[name] else 'FAIL'} {name}", flush=True)
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
