"""Dependencies point one way: stages import lower packages, never each other."""

from __future__ import annotations

import ast
from pathlib import Path

import eyrie

SOURCE = Path(eyrie.__file__).parent

# Lower packages and what each may import besides the base (errors, files, schema, config and its checks, threads).
BASE = {"errors", "files", "schema", "schema_gateway", "checks", "config", "threads", "__init__"}
LOWER = {
    "target": set(),
    "chat": set(),
    "shards": {"target"},
    "vault": set(),
    "gateway": {"target", "chat", "vault"},
    "drafter": {"target", "shards"},
}
STAGES = {
    "catalogue", "plan", "prompts", "generate", "tokenize", "corpus", "capture", "train", "evaluate", "report",
}  # fmt: skip
TOP = {"cli", "__main__", "commands", "workflow"}


def imports(path: Path) -> set[str]:
    """The first-level names inside `eyrie` that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "eyrie":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("eyrie.")}
    return found - {"__version__"}


def modules() -> list[tuple[str, Path]]:
    return [(path.relative_to(SOURCE).parts[0].removesuffix(".py"), path) for path in sorted(SOURCE.rglob("*.py"))]


def test_every_package_has_its_place():
    assert {name for name, _ in modules()} <= BASE | set(LOWER) | STAGES | TOP


def test_lower_packages_import_only_what_is_below_them():
    for name, path in modules():
        if name in BASE:
            assert imports(path) <= BASE, path
        elif name in LOWER:
            assert imports(path) <= BASE | LOWER[name] | {name}, (path, imports(path))


def test_stages_never_import_each_other():
    for name, path in modules():
        if name in STAGES:
            assert imports(path) <= BASE | set(LOWER) | {name}, (path, imports(path))


def test_the_gateway_knows_nothing_of_datasets():
    for name, path in modules():
        if name == "gateway" and path.name != "__init__.py":
            assert "dataset" not in path.read_text().lower().replace("eyrie.prompts", ""), path
