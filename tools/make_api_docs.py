#!/usr/bin/env python3
"""Writes the API reference under docs/api/ from the comments of the headers and of the package, and
from the command's --help.

    tools/make_api_docs.py cpp                    from include/penstock/
    tools/make_api_docs.py python [--stub FILE]   from the package; FILE is _penstock.pyi of a built
                                                  one, by default that of the installed penstock
    tools/make_api_docs.py command [--binary FILE]   from `penstock --help` and each subcommand's; FILE
                                                  is by default that of the release build
    --check                                       writes nothing; fails if a page is not up to date
"""
from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "api"
LAYERS = ["core", "topology", "checkpoint", "comm", "table", "reader", "engram", "gate", "plan"]

# ---- C++ ---------------------------------------------------------------------------------------


class Entity:
    """A declaration at namespace scope, with its comment and the text of its public part."""

    def __init__(self, comment: list[str], lines: list[str]) -> None:
        self.comment, self.lines = comment, lines

    def title(self) -> str:
        head = " ".join(line.strip() for line in self.lines)
        if match := re.match(r"(?:template <.*?> )?(?:class|struct|enum class) (\w+)", head):
            return match[1]
        match = re.match(r".*?([\w:~]+|operator\S+)\s*\(", head) or re.match(r".*?(\w+)\s*[={;]", head)
        return match[1] if match else head


def without_private(lines: list[str]) -> list[str]:
    """A class body up to its first private or protected part, and its end."""
    out: list[str] = []
    for line in lines:
        if line.strip() in ("private:", "protected:"):
            while out and not out[-1].strip():
                out.pop()
            return [*out, "};"]
        out.append(line)
    return out


def without_body(lines: list[str]) -> list[str]:
    """A function's declaration without what it does."""
    head = lines[0]
    if re.match(r"(template|class|struct|enum|inline constexpr|using)\b", head):
        return lines
    text = "\n".join(lines)
    depth = 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "{" and depth == 0:
            return [*text[:at].rstrip().splitlines()[:-1], text[:at].rstrip().splitlines()[-1] + ";"]
    return lines


def depth_change(line: str) -> int:
    code = re.sub(r"//.*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'", "", line)
    return sum(code.count(open_) - code.count(close) for open_, close in ("{}", "()"))


def entities_of(text: str) -> list[Entity]:
    """The documented declarations of a header, in their order."""
    out: list[Entity] = []
    inside = re.split(r"^namespace penstock \{$", text, maxsplit=1, flags=re.M)[1]
    inside = re.sub(r"^namespace detail \{$.*?^\}  // namespace detail$", "", inside, flags=re.M | re.S)
    comment: list[str] = []
    lines: list[str] = []
    depth = 0
    for line in inside.splitlines():
        if line.startswith("}  // namespace penstock"):
            break
        if not lines and line.startswith("///"):
            comment.append(line[3:].removeprefix(" "))
            continue
        if not lines and (not line.strip() or line.startswith("//")):
            comment = []
            continue
        lines.append(line)
        depth += depth_change(line)
        if depth == 0 and re.search(r"[;}]\s*(//.*)?$", line):
            if not re.fullmatch(r"(?:class|struct|enum class) \w+;", lines[0]):
                out.append(Entity(comment, without_body(without_private(lines))))
            comment, lines = [], []
    return out


def prose(comment: list[str]) -> list[str]:
    """A comment as Markdown: labels become list items, what is indented under one its text."""
    out: list[str] = []
    for line in comment:
        if match := re.match(r"([A-Z]\w+):\s+(.*)", line):
            if out and out[-1] and not out[-1].startswith(("- ", "  ")):
                out.append("")
            out.append(f"- *{match[1]}:* {match[2]}")
        elif line.startswith("  ") and out and out[-1].startswith(("- ", "  ")):
            out.append("  " + line.strip())
        elif out and out[-1].startswith("  ") and line and not line.startswith(" "):
            out += ["", line]
        else:
            out.append(line)
    return out


def cpp_page(layer: str) -> str:
    out = [f"# C++: {layer}", "", f"Made by `tools/make_api_docs.py` from `include/penstock/{layer}/`.", ""]
    for header in sorted((ROOT / "include" / "penstock" / layer).glob("*.hpp")):
        name = header.relative_to(ROOT / "include").as_posix()
        found = entities_of(header.read_text())
        out += [f"## {name}", ""] if found else []
        for entity in found:
            out += [f"### {entity.title()}", ""]
            out += [*prose(entity.comment), ""] if entity.comment else []
            out += ["```cpp", *entity.lines, "```", ""]
    return "\n".join(out)


def cpp_pages() -> dict[str, str]:
    pages = {f"cpp/{layer}.md": cpp_page(layer) for layer in LAYERS}
    rest = {path.name for path in (ROOT / "include" / "penstock").iterdir() if path.is_dir()}
    assert rest == set(LAYERS), f"make_api_docs: folders {sorted(rest)}, needs {LAYERS}"
    return pages


# ---- Python ------------------------------------------------------------------------------------


def signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({arguments}){answer}"


def indented(text: str | None, by: str) -> list[str]:
    return [(by + line).rstrip() for line in inspect.cleandoc(text or "").splitlines()]


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list)


def function_text(node: ast.FunctionDef, prefix: str) -> list[str]:
    text = signature(node).replace("penstock._typing.", "").replace("(self, ", "(").replace("(self)", "()")
    text = text.replace("(cls, ", "(").replace("(cls)", "()")
    if is_property(node):
        text = node.name + (f": {ast.unparse(node.returns)}" if node.returns else "")
    return [f"#### {prefix}{node.name}", "", "```text", *textwrap.wrap(text, 100, subsequent_indent="    "),
            *indented(ast.get_docstring(node), "    "), "```", ""]


def class_text(node: ast.ClassDef) -> list[str]:
    out = [f"### {node.name}", "", "```text", *indented(ast.get_docstring(node), ""), "```", ""]
    for member in node.body:
        if not isinstance(member, ast.FunctionDef):
            continue
        if member.name.startswith("_") and member.name not in ("__call__", "__init__"):
            continue
        if ast.get_docstring(member):
            out += function_text(member, f"{node.name}.")
    return out


def module_text(title: str, source: str, names: set[str] | None) -> list[str]:
    """The documented classes and functions of a module; of `names`, if given. Without a title,
    nothing about the module itself."""
    tree = ast.parse(source)
    out = [f"## {title}", ""] if title else []
    if title and ast.get_docstring(tree):
        out += ["```text", *indented(ast.get_docstring(tree), ""), "```", ""]
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        if names is not None and node.name not in names:
            continue
        out += class_text(node) if isinstance(node, ast.ClassDef) else function_text(node, "")
    return out


def public_names(source: str) -> set[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def stub_of_installed() -> pathlib.Path:
    found = importlib.util.find_spec("penstock")
    if found is None or found.origin is None:
        sys.exit("make_api_docs: found no installed penstock, needs one, or --stub FILE")
    return pathlib.Path(found.origin).with_name("_penstock.pyi")


def python_pages(stub: pathlib.Path) -> dict[str, str]:
    package = ROOT / "bindings" / "python" / "penstock"
    out = ["# Python", "", "Made by `tools/make_api_docs.py` from the docstrings.", ""]
    init = (package / "__init__.py").read_text()
    out += module_text("penstock", init, set())
    out += module_text("", stub.read_text(), public_names(init))
    out += module_text("", (package / "_errors.py").read_text(), None)
    torch = (package / "torch.py").read_text()
    out += module_text("penstock.torch", torch, public_names(torch))
    return {"python.md": "\n".join(out)}


# ---- The command -------------------------------------------------------------------------------

COMMANDS = ["", "make-model", "inspect", "run", "hash", "check", "bench", "bench lookup", "bench prefetch",
            "bench gate"]


def command_page(binary: pathlib.Path) -> dict[str, str]:
    out = ["# The command", "", "Made by `tools/make_api_docs.py` from `penstock --help`.", ""]
    for name in COMMANDS:
        words = name.split()
        asked = subprocess.run([binary, *words, "--help"], capture_output=True, text=True, check=True)
        # A subcommand that this page forgets would be a hole in the reference.
        listed = re.search(r"^Subcommands:\n(.*?)(?:\n\n|\Z)", asked.stdout, re.M | re.S)
        for line in listed[1].splitlines() if listed else []:
            if found := re.match(r"  (\S+)", line):
                assert " ".join([*words, found[1]]) in COMMANDS, f"{found[1]} is not on the page"
        text = "\n".join(line.rstrip() for line in asked.stdout.strip().splitlines())
        out += [f"## penstock {name}".rstrip(), "", "```text", text, "```", ""]
    return {"command.md": "\n".join(out)}


# ---- The program -------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["cpp", "python", "command"])
    parser.add_argument("--stub", type=pathlib.Path)
    parser.add_argument("--binary", type=pathlib.Path,
                        default=ROOT / "build" / "cpu-release" / "src" / "cli" / "penstock")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.part == "cpp":
        pages = cpp_pages()
    elif options.part == "python":
        pages = python_pages(options.stub or stub_of_installed())
    else:
        pages = command_page(options.binary)
    stale = 0
    for name, text in pages.items():
        text = re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
        path = PAGES / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                print(f"{path.relative_to(ROOT)}: not up to date; run tools/make_api_docs.py "
                      f"{options.part}", file=sys.stderr)
                stale += 1
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
