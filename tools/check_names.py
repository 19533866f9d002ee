#!/usr/bin/env python3
"""Fails if a document names a path, option, command or identifier that does not exist.

Documents are README.md and its neighbours and everything under docs/, but not docs/measurements/
(logs of their day) and docs/api/ (generated). Looked at are inline code, code blocks and links.
Sources are everything else in the tree that git knows; build/, dist/ and demo paths are the reader's.

    tools/check_names.py               checks the documents
    tools/check_names.py --self-test   plants a wrong name of each kind and expects to find it
"""
from __future__ import annotations

import argparse
import functools
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Names of things that are not ours and that nothing in the tree happens to mention.
OUTSIDE = {"fallocate"}

# First parts of paths that the reader's own commands make, or that lie outside the tree.
READERS = {"build", "dist", "demo", "dev", "proc", "sys", "etc", "usr", "tmp", "opt", "cgroup", "home"}

INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^\s*```(\w*)\s*$")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)~?[A-Za-z_]\w*)*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMAND = re.compile(r"(?<![\w/.-])(?:\S*/)?penstock ([a-z][a-z-]*)(?![\w:.])")


@functools.cache
def tracked(*patterns: str) -> list[pathlib.Path]:
    answer = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others",
                             "--exclude-standard", *patterns],
                            check=True, capture_output=True, text=True).stdout
    return [path for line in answer.splitlines() if (path := ROOT / line).is_file()]


def is_document(path: pathlib.Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return name.endswith(".md") and not name.startswith(("docs/measurements/", "docs/api/", "tests/"))


@functools.cache
def texts() -> dict[str, str]:
    """The sources by their path in the tree."""
    out = {}
    for path in tracked():
        if path.suffix in (".md", ".xz", ".safetensors") or path.name == "check_names.py":
            continue
        try:
            out[path.relative_to(ROOT).as_posix()] = path.read_text()
        except UnicodeDecodeError:
            continue
    return out


@functools.cache
def words() -> frozenset[str]:
    """Every word of the sources and of their paths."""
    found: set[str] = set(OUTSIDE)
    for name, text in texts().items():
        found.update(re.findall(r"[A-Za-z_]\w*", text))
        found.update(re.findall(r"[A-Za-z_]\w*", name))
    return frozenset(found)


@functools.cache
def options_of(command: str) -> frozenset[str]:
    """The options in the sources of a subcommand; "" is any program of the tree."""
    found = set()
    for name, text in texts().items():
        ours = (name == f"src/cli/{command.replace('-', '_')}_command.cpp"
                or name.startswith(f"src/cli/{command.replace('-', '_')}/"))
        if ours or not command:
            found.update(OPTION.findall(text))
    return frozenset(found | {"--help", "--version"})


def commands() -> set[str]:
    names = (re.fullmatch(r"src/cli/(\w+)_command\.cpp", name) for name in texts())
    return {match[1].replace("_", "-") for match in names if match}


# ---- What is looked at in a piece of code ------------------------------------------------------


def wrong_commands(line: str) -> list[str]:
    """In a line of shell: subcommands of penstock and their options."""
    out = []
    for match in COMMAND.finditer(line):
        command = match[1]
        if command not in commands():
            out.append(f"command `penstock {command}`")
            continue
        rest = re.split(r"[|;&#]", line[match.end():])[0]
        out += [f"option `{option}` of `penstock {command}`"
                for option in OPTION.findall(rest) if option not in options_of(command)]
    return out


def is_path(text: str) -> bool:
    if not re.fullmatch(r"[\w.<>*{}-]+(/[\w.<>*{},-]+)*/?", text) or text.startswith("-"):
        return False
    first = text.split("/")[0]
    if first in READERS or re.search(r"\.(?:cc|h)$", text):
        return False
    has_ending = re.search(r"\.(?:hpp|cpp|cu|cuh|py|sh|md|json|cmake|toml|txt|xz|in)$", text)
    is_inside = "/" in text and (ROOT / first).is_dir()
    return bool(is_inside or (has_ending and "/" in text))


def path_exists(text: str, beside: pathlib.Path) -> bool:
    pattern = re.sub(r"<[^>]*>", "*", text.rstrip("/"))
    alternatives = [pattern]
    if match := re.search(r"\{([^}]*)\}", pattern):
        alternatives = [pattern.replace(match[0], part) for part in match[1].split(",")]
    places = (ROOT, beside, ROOT / "include", ROOT / "include" / "penstock", ROOT / "src")
    return all(any(any(place.glob(one)) for place in places) for one in alternatives)


def is_file_name(text: str) -> bool:
    return bool(re.fullmatch(r"[\w.*-]+\.(?:hpp|cpp|cu|cuh|py|sh|md|cmake|xz|safetensors|in)", text))


def file_exists(name: str) -> bool:
    """Whether some file has this name; x stands for any word, as in x_test.cpp."""
    pattern = re.sub(r"^x(?=[_.])", "*", name)
    return any(path.match(pattern) for path in tracked())


def wrong_identifiers(text: str) -> list[str]:
    return [f"identifier `{word}`" for name in IDENTIFIER.findall(text)
            for word in re.split(r"::|\.", name.replace("~", ""))
            if len(word) > 2 and word not in words()]


def wrong_inline(text: str, beside: pathlib.Path) -> list[str]:
    """A span of inline code: a path, an option, a command line or a name."""
    text = text.strip()
    out = wrong_commands(text)
    if is_path(text):
        return out + ([] if path_exists(text, beside) else [f"path `{text}`"])
    if is_file_name(text):
        return out + ([] if file_exists(text) else [f"file `{text}`"])
    if not COMMAND.search(text):
        ours = text.startswith("-") or re.match(r"(?:tools|examples|bench)/", text)
        out += [f"option `{option}`" for option in OPTION.findall(text)
                if ours and option not in options_of("")]
    program = text.split()[0] if text.split() else ""
    if is_path(program) and not path_exists(program, beside):
        out.append(f"path `{program}`")
    if re.fullmatch(r"[\w:.~]+(\(.*\))?(?: const)?", text) and not re.match(r"\d", text):
        out += wrong_identifiers(text.split("(")[0])
    return out


def wrong_in_block(language: str, line: str, beside: pathlib.Path) -> list[str]:
    """A line of a code block. Programs name their own variables: only members and calls are looked at."""
    if language in ("sh", "bash", "console"):
        out = wrong_commands(line)
        for word in re.findall(r"[\w./-]+", line):
            if is_path(word) and not path_exists(word, beside):
                out.append(f"path `{word}`")
        if re.match(r"\s*(?:\S+=\S+ )*(?:tools|python3? (?:tools|examples|bench))/", line):
            out += [f"option `{option}`" for option in OPTION.findall(line)
                    if option not in options_of("")]
        return out
    if language not in ("cpp", "python"):
        return []
    code = re.sub(r"(?://|#(?!include)).*$|\"[^\"]*\"", "", line)
    members = re.findall(r"(?:::|\.|->)([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*[({]", code)
    names = [first or second for first, second in members]
    out = [found for name in names for found in wrong_identifiers(name)]
    if include := re.match(r"\s*#include [\"<](penstock/[^\">]+)", line):
        if not path_exists(include[1], beside):
            out.append(f"path `{include[1]}`")
    return out


def wrong_links(line: str, beside: pathlib.Path) -> list[str]:
    return [f"link `{target}`" for target in LINK.findall(line)
            if "://" not in target and not (beside / target).exists()]


def wrong_names(text: str, beside: pathlib.Path) -> list[tuple[int, str]]:
    """(line, what) of every wrong name in a document."""
    out: list[tuple[int, str]] = []
    language: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if fence := FENCE.match(line):
            language = fence[1] or "text" if language is None else None
            continue
        if language is not None:
            found = wrong_in_block(language, line, beside)
        else:
            found = wrong_links(line, beside)
            for span in INLINE.findall(line.replace("\\|", "|")):
                found += wrong_inline(span, beside)
        out += [(number, what) for what in found]
    return out


# ---- The program -------------------------------------------------------------------------------

PLANTED = {
    "See `src/tabel/table.cpp`.": "path `src/tabel/table.cpp`",
    "See `architectur.md`.": "file `architectur.md`",
    "See [the map](architectur.md).": "link `architectur.md`",
    "Call `Table::lookupp`.": "identifier `lookupp`",
    "Set `PENSTOCK_NO_SUCH_SWITCH`.": "identifier `PENSTOCK_NO_SUCH_SWITCH`",
    "Give `--placment` to it.": "option `--placment`",
    "Run `penstock runn DIR`.": "command `penstock runn`",
    "```sh\npenstock run demo --tokenz f\n```": "option `--tokenz` of `penstock run`",
    "```sh\npenstock inspekt demo\n```": "command `penstock inspekt`",
    "```sh\npython examples/python/07_nothing.py\n```": "path `examples/python/07_nothing.py`",
    "```python\nrows = penstock.Table.opn(x)\n```": "identifier `opn`",
    "```cpp\nTable::opne(spec);\n```": "identifier `opne`",
}


def self_test() -> int:
    """Whether each planted name is found, and alone."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for text, needs in PLANTED.items():
            found = [what for _, what in wrong_names(text, pathlib.Path(folder))]
            if found != [needs]:
                print(f"self-test: {text!r} gave {found}, needs [{needs!r}]", file=sys.stderr)
                failures += 1
    print(f"self-test: {len(PLANTED) - failures} of {len(PLANTED)} planted names found")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    if parser.parse_args().self_test:
        return self_test()
    documents = [path for path in tracked("*.md") if is_document(path)]
    count = 0
    for path in documents:
        for number, what in wrong_names(path.read_text(), path.parent):
            print(f"{path.relative_to(ROOT)}:{number}: {what} does not exist", file=sys.stderr)
            count += 1
    print(f"names: {len(documents)} documents, {count} wrong names")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
