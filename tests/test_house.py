"""The house keeps its order: who imports whom, and what must not be found anywhere."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("vertumnusd", "kernels", "tui")
OUR_FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

# Folder → what its files may import of ours, besides their own folder and the messages.
ALLOWED = {
    "checkpoint": {"gguf_file"},
    "control": {"layout"},
    "node": {
        "control",
        "compiled",
        "config",
        "checkpoint",
        "gguf_file",
        "layout",
        "profile_file",
        "admin_address",
    },
    "rank": {"layout", "checkpoint", "frames", "gguf_file", "vertumnus_kernels"},
    "live": {"control", "config", "simulate"},
    "simulate": {"control", "config", "layout"},
    "profile": {
        "control",
        "config",
        "checkpoint",
        "frames",
        "layout",
        "node",
        "profile_file",
        "simulate",
    },
    "tui": {"vertumnus_tui"},
}
NEVER = {
    "checkpoint": {"torch", "trio"},
    "control": {"torch", "trio", "time", "random", "logging", "structlog", "socket", "os"},
    "node": {"torch", "vertumnus_kernels"},
    "rank": {"trio"},
    "simulate": {"torch", "trio"},
    "profile": {"torch", "trio"},
    "tui": {"torch", "trio"},
}


def imports(path: Path) -> set[str]:
    """What a file imports: of ours ``control``, ``config`` …, of others the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            parts = name.split(".")
            found.add(parts[1] if parts[0] == "vertumnusd" and len(parts) > 1 else parts[0])
    return found


def role(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] in ("kernels", "tui") else (parts[1] if len(parts) > 2 else "")


OURS = (
    {p.stem for p in (ROOT / "vertumnusd").glob("*.py")}
    | set(ALLOWED)
    | {"vertumnus_kernels", "vertumnus_tui"}
)


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_inward(path):
    where = role(path)
    if where not in ALLOWED and where != "kernels":
        return
    allowed = ALLOWED.get(where, set()) | {where, "messages", "vertumnusd", "vertumnus_kernels"}
    if where != "rank" and where != "kernels":
        allowed.discard("vertumnus_kernels")
    ours = imports(path) & OURS
    assert ours <= allowed, f"{path.name} imports {sorted(ours - allowed)}"
    assert not imports(path) & NEVER.get(where, set())


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_code_comes_from_data(path):
    text = path.read_text()
    assert not imports(path) & {"pickle", "marshal", "shelve", "dill"}
    assert not re.search(r"(?<![.\w])(eval|exec)\(|torch\.load\(|shell=True", text)


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_readable(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 620, "one file, one noun: what is missing that would split it?"
    assert path.name == "__init__.py" or lines[0].startswith('"""'), "say what the module is"


def test_no_two_test_files_have_one_name():
    """Tests are modules beside each other: a second one of the same name would not be found."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_nobody_imports_a_conftest():
    """There are several; which one it would be depends on what else is collected."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert not [str(path) for path in files if "conftest" in imports(path)]
