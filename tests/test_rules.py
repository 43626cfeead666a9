"""The rules of the house (CONTRIBUTING.md), read off the source itself.

Each test collects every breach before it fails, so that its message is the list of what to do.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

# package -> packages of ours that it may import
MAY_IMPORT = {
    "app": {"app", "asr", "llm_engine", "tts"},
    "asr": {"asr"},
    "llm_engine": {"llm_engine", "kernels"},
    "kernels": {"kernels"},
    "tts": {"tts"},
}
# library -> packages that may import it
ONLY_IN = {"torch": {"llm_engine", "kernels"}, "triton": {"llm_engine", "kernels"}}
# each of these is imported by one file only, the adapter that knows it
ONE_FILE = {
    "av",
    "ctranslate2",
    "faster_whisper",
    "hibari",
    "huggingface_hub",
    "onnxruntime",
    "soundfile",
    "soxr",
    "transformers",
    "websockets",
}
# path, or path::function -> why the size limit does not hold for it
SIZE_EXEMPTIONS: dict[str, str] = {}
# test file that mirrors no single module -> what it covers instead
CROSS_CUTTING_TESTS: dict[str, str] = {}
PRINTING_IS_THE_JOB = ("app/commands/", "app/__main__.py")


@cache
def sources() -> tuple[str, ...]:
    """Every module of the packages, as a path from the repository's root."""
    return tuple(
        sorted(
            path.relative_to(REPOSITORY).as_posix()
            for package in MAY_IMPORT
            for path in (REPOSITORY / package).rglob("*.py")
            if "__pycache__" not in path.parts
        )
    )


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text("utf-8"), filename=path)


def imported_by(path: str) -> set[str]:
    """Top-level names of everything the module imports, at its head or inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = path.partition("/")[0]
            names.add(relative if node.level else (node.module or "").partition(".")[0])
    return names


def has_behaviour(path: str) -> bool:
    """False for modules of messages, interfaces and errors: their users' tests cover them."""
    if path.endswith("/errors.py"):
        return False

    def does_something(statement: ast.stmt) -> bool:
        is_text_or_ellipsis = isinstance(statement, ast.Expr) and isinstance(
            statement.value, ast.Constant
        )
        return not is_text_or_ellipsis

    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(does_something(statement) for statement in node.body)
        for node in ast.walk(tree_of(path))
    )


def expected_test(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"tests/{folder}/test_{name}"


def report(title: str, breaches: list[str]) -> str:
    return f"{title}:\n  " + "\n  ".join(breaches)


def test_imports_point_downwards_only() -> None:
    breaches = [
        f"{path} imports {name}"
        for path in sources()
        for name in sorted(imported_by(path) & MAY_IMPORT.keys())
        if name not in MAY_IMPORT[path.partition("/")[0]]
    ]
    assert not breaches, report("imports against the direction", breaches)


def test_torch_and_triton_stay_in_the_engine_and_the_kernels() -> None:
    breaches = [
        f"{path} imports {library}"
        for path in sources()
        for library, packages in ONLY_IN.items()
        if library in imported_by(path) and path.partition("/")[0] not in packages
    ]
    assert not breaches, report("imports outside llm_engine/ and kernels/", breaches)


def test_a_heavy_library_is_imported_in_one_file() -> None:
    importers: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for library in imported_by(path) & ONE_FILE:
            importers[library].append(path)
    breaches = [
        f"{library}: {', '.join(paths)}"
        for library, paths in sorted(importers.items())
        if len(paths) > 1
    ]
    assert not breaches, report("imported in more than one file", breaches)


def test_every_module_has_its_test_file() -> None:
    missing = [
        f"{expected_test(path)} (for {path})"
        for path in sources()
        if not path.endswith("/__init__.py")
        and has_behaviour(path)
        and not (REPOSITORY / expected_test(path)).is_file()
    ]
    assert not missing, report("test files that do not exist", missing)


def test_every_test_file_mirrors_a_module() -> None:
    """`test_NAME.py` or, for one aspect, `test_NAME_aspect.py`, beside where NAME.py lies."""
    breaches = []
    for package in MAY_IMPORT:
        for path in (REPOSITORY / "tests" / package).rglob("test_*.py"):
            name = path.relative_to(REPOSITORY).as_posix()
            folder = REPOSITORY / path.parent.relative_to(REPOSITORY / "tests")
            stem = path.stem.removeprefix("test_")
            modules = [module.stem for module in folder.glob("*.py")]
            mirrors = any(stem == module or stem.startswith(f"{module}_") for module in modules)
            if not mirrors and name not in CROSS_CUTTING_TESTS:
                breaches.append(name)
    assert not breaches, report("test files that name no module", breaches)
    stale = [name for name in CROSS_CUTTING_TESTS if not (REPOSITORY / name).is_file()]
    assert not stale, report("exemptions that nothing needs", stale)


def test_only_commands_print() -> None:
    breaches = [
        f"{path}:{node.lineno}"
        for path in sources()
        if not path.startswith(PRINTING_IS_THE_JOB)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not breaches, report("print outside app/commands", breaches)


def test_only_compiled_functions_lack_annotations() -> None:
    """mypy is told not to ask for them in kernels/, so this does, for all others."""
    breaches = []
    for path in sources():
        if not path.startswith("kernels/"):
            continue
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
            if re.search(r"triton\.jit|njit|intrinsic", decorators):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bare = [a.arg for a in arguments if not a.annotation and a.arg not in ("self", "cls")]
            if bare or node.returns is None:
                breaches.append(f"{path}::{node.name} ({', '.join(bare) or 'return'})")
    assert not breaches, report("functions without types", breaches)


def oversized() -> dict[str, str]:
    found = {}
    for path in sources():
        num_lines = len((REPOSITORY / path).read_text("utf-8").splitlines())
        if num_lines > MAX_FILE_LINES:
            found[path] = f"{num_lines} lines, at most {MAX_FILE_LINES}"
        if path.startswith("kernels/"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    found[f"{path}::{node.name}"] = (
                        f"{num_lines} lines, at most {MAX_FUNCTION_LINES}"
                    )
    return found


def test_files_and_functions_stay_small() -> None:
    found = oversized()
    breaches = [f"{what}: {size}" for what, size in found.items() if what not in SIZE_EXEMPTIONS]
    assert not breaches, report("too large", breaches)
    stale = sorted(SIZE_EXEMPTIONS.keys() - found.keys())
    assert not stale, report("exemptions that nothing needs", stale)


def listed_in_readme() -> set[str]:
    """Paths in the README's file tree: two spaces per level, a folder's name ends with a slash."""
    text = (REPOSITORY / "README.md").read_text("utf-8")
    block = re.search(r"## File tree\n.*?```\w*\n(.*?)```", text, re.DOTALL)
    assert block, "README.md has no code block under '## File tree'"
    listed = set()
    folders: list[str] = []
    for line in block[1].splitlines():
        entry = re.match(r"( *)(\S+)", line)
        if not entry:
            continue
        depth, name = len(entry[1]) // 2, entry[2]
        if depth > len(folders):
            continue  # the second line of a description
        del folders[depth:]
        if name.endswith("/"):
            folders.append(name)
        else:
            listed.add("".join(folders) + name)
    return listed


def test_the_readme_tree_lists_every_file_that_exists_and_no_other() -> None:
    checked = (*MAY_IMPORT, "web", "scripts")
    actual = {
        path.relative_to(REPOSITORY).as_posix()
        for folder in checked
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and path.name != "__init__.py" and "__pycache__" not in path.parts
    }
    listed = {path for path in listed_in_readme() if path.partition("/")[0] in checked}
    breaches = [f"{path} exists, but is not listed" for path in sorted(actual - listed)]
    breaches += [f"{path} is listed, but does not exist" for path in sorted(listed - actual)]
    assert not breaches, report("README.md (scripts/update_tree mends it)", breaches)


def pinned(requirement: str) -> tuple[str, str]:
    parsed = Requirement(requirement)
    return canonicalize_name(parsed.name), str(parsed.specifier)


def direct_dependencies(group: str) -> dict[str, str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    lists = {"run": project["dependencies"], **project["optional-dependencies"]}
    return dict(pinned(requirement) for requirement in lists[group])


def locked(name: str) -> dict[str, str]:
    lines = (REPOSITORY / name).read_text("utf-8").splitlines()
    return dict(pinned(line) for line in lines if line and line[0] not in "#-")


def test_the_lock_files_pin_every_dependency_at_the_same_version() -> None:
    for group, lock in (("run", "requirements.lock"), ("test", "requirements-test.lock")):
        pins = locked(lock)
        assert all(re.fullmatch(r"==[\w.]+", pin) for pin in pins.values()), lock
        assert direct_dependencies(group).items() <= pins.items(), lock
    assert not locked("requirements.lock").keys() & locked("requirements-test.lock").keys()


def imports_below(*folders: str) -> set[str]:
    """Distributions whose modules the Python files of these folders import."""
    providers = packages_distributions()
    names: set[str] = set()
    for folder in folders:
        for path in (REPOSITORY / folder).rglob("*.py"):
            names |= imported_by(path.relative_to(REPOSITORY).as_posix())
    return {canonicalize_name(providers[name][0]) for name in names if name in providers}


def test_every_imported_package_is_a_direct_dependency() -> None:
    run = direct_dependencies("run").keys()
    test = direct_dependencies("test").keys()
    # a benchmark may compare with a peer that only the tests install
    peers = imports_below("app/bench") | {"transformers"}  # llm_engine/transformers_peer.py
    assert sorted(imports_below(*MAY_IMPORT) - peers - run) == []
    assert sorted(imports_below("app/bench") - run - test) == []
    assert sorted(imports_below("tests", "scripts") - run - test - {"packaging", "pip"}) == []


def test_every_direct_dependency_is_imported_or_run() -> None:
    unused = direct_dependencies("run").keys() - imports_below(*MAY_IMPORT, "scripts")
    unused |= direct_dependencies("test").keys() - imports_below("tests")
    # tools that are run, not imported
    assert sorted(unused - {"mypy", "ruff", "pytest-asyncio"}) == []


def test_every_direct_dependency_is_explained() -> None:
    text = (REPOSITORY / "docs" / "dependencies.md").read_text("utf-8")
    explained = {
        canonicalize_name(name) for name in re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    }
    wanted = direct_dependencies("run").keys() | direct_dependencies("test").keys()
    assert sorted(wanted) == sorted(explained)


def test_no_text_names_a_path_of_some_machine() -> None:
    private = re.compile(r"(?<![\w.])/(?:tmp|work|root|home/\w+)/")
    texts = [REPOSITORY / path for path in sources()]
    texts += [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    texts += [path for path in (REPOSITORY / "scripts").iterdir() if path.is_file()]
    texts += (REPOSITORY / "tests").rglob("*.py")
    breaches = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in texts
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if private.search(line)
    ]
    assert not breaches, report("paths of one machine", breaches)
