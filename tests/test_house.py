"""How the house is built: which room may know which, what importing does, what stands nowhere.

The rules are read from the syntax trees, so that a rule holds for code that no test runs too.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import chainmesh

ROOT = Path(__file__).parents[1]
ROOMS = ("sampler", "kernels", "sharding")
HEAVY = ("blackjax", "arviz", "matplotlib", "rich", "IPython", "pandas", "scipy", "psutil", "zarr", "xarray")


def _modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of the package by its import name, with its file and its syntax tree."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            parts = parts[2:] if parts[:2] == ["sampler", "_front"] else parts
            name = ".".join(["chainmesh", *parts]).removesuffix(".__init__")
            found[name] = (path, ast.parse(path.read_text(), str(path)))
    return found


MODULES = _modules()


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run on import: not those in functions, nor those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from outside_functions(node)


def imports(name: str, nodes: Iterator[ast.AST]) -> Iterator[tuple[str, str | None, int]]:
    """(module, imported name or None, line), relative imports resolved as Python does."""
    path, _ = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield module, alias.name, node.lineno


def place(name: str, line: int) -> str:
    return f"{MODULES[name][0].relative_to(ROOT)}:{line}"


def fresh(code: str, *options: str) -> str:
    """Run code in a new Python, away from the repository."""
    done = subprocess.run(
        [sys.executable, "-P", *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [
        ("sharding", ("kernels", "sampler")),
        ("kernels", ("sharding", "sampler")),
        # A room that went through the front door would import itself while it is being imported.
        ("sampler", ()),
    ],
)
def test_rooms_know_only_what_they_may(room, forbidden):
    wrong = []
    for name, (_, tree) in MODULES.items():
        if not f"{name}.".startswith(f"chainmesh.{room}."):
            continue
        for module, imported, line in imports(name, ast.walk(tree)):
            full = f"{module}.{imported}" if imported else module
            other = any(f"{full}.".startswith(f"chainmesh.{there}.") for there in forbidden)
            front = module == "chainmesh" and imported not in (None, *ROOMS, "_errors")
            if other or front:
                wrong.append(f"{place(name, line)} imports {full}")
    assert not wrong, wrong


def test_heavy_packages_are_imported_where_they_are_used():
    wrong = [
        f"{place(name, line)} imports {module}"
        for name, (_, tree) in MODULES.items()
        for module, _, line in imports(name, outside_functions(tree))
        if module.split(".")[0] in HEAVY
    ]
    assert not wrong, wrong


def _defines(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


def test_every_import_of_our_own_leads_somewhere():
    """Also those inside functions, which no import of the module would try."""
    wrong = []
    for name, (_, tree) in MODULES.items():
        for module, imported, line in imports(name, ast.walk(tree)):
            if module.split(".")[0] != "chainmesh":
                continue
            known = module in MODULES and (
                imported is None
                or f"{module}.{imported}" in MODULES
                or imported in _defines(MODULES[module][1])
            )
            if not known:
                wrong.append(f"{place(name, line)}: {module}.{imported or ''}")
    assert not wrong, wrong


def test_inits_only_re_export():
    """Code in an __init__ would be missed by the run-time type checks of a mapped package."""
    for name, (path, tree) in MODULES.items():
        if path.name == "__init__.py":
            kinds = {type(node) for node in tree.body}
            allowed = {ast.Expr, ast.ImportFrom, ast.Import, ast.Assign, ast.AnnAssign}
            assert kinds <= allowed, f"{name}: {kinds - allowed}"


def _calls(tree: ast.AST, wanted: str, function: str = "<module>") -> Iterator[tuple[str, int]]:
    """(enclosing function, line) of every use of a name, as attribute or bare."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        used = getattr(node, "attr", None) == wanted if isinstance(node, ast.Attribute) else False
        used = used or (isinstance(node, ast.Name) and node.id == wanted)
        if used:
            yield function, node.lineno  # type: ignore[attr-defined]
        yield from _calls(node, wanted, inside)


def test_shard_map_is_called_in_one_function():
    uses = [
        (MODULES[name][0].parent.name, function, place(name, line))
        for name, (_, tree) in MODULES.items()
        for function, line in _calls(tree, "shard_map")
    ]
    assert len({(room, function) for room, function, _ in uses}) == 1, uses
    assert uses[0][0] == "sharding", uses


@pytest.mark.parametrize(
    "name",
    [
        *("pmap", "static_broadcasted_argnums", "static_argnums", "static_argnames"),
        *("io_callback", "pure_callback", "debug_callback", "host_callback", "id_tap"),
    ],
)
def test_names_that_stand_nowhere(name):
    """Old ways over devices, static numbers (each value would compile again), callbacks to the host."""
    wrong = []
    for module, (_, tree) in MODULES.items():
        wrong += [place(module, line) for _, line in _calls(tree, name)]
        wrong += [
            place(module, node.value.lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == name
        ]
        wrong += [place(module, line) for _, what, line in imports(module, ast.walk(tree)) if what == name]
    assert not wrong, wrong


def test_no_debug_printing_from_programs():
    wrong = [
        place(name, node.lineno)
        for name, (_, tree) in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("print", "callback", "breakpoint")
        and ast.unparse(node.value).endswith("debug")
    ]
    assert not wrong, wrong


def test_files_can_be_read_in_one_sitting():
    """About 400 lines; 420 is where the test stops listening."""
    long = {
        str(p.relative_to(ROOT)): n
        for p, _ in MODULES.values()
        if (n := len(p.read_text().splitlines())) > 420
    }
    assert not long, f"split by what a reader looks for: {long}"


def test_every_public_name_has_a_docstring():
    wrong = []
    for name in sorted(set(vars(chainmesh)) - set(ROOMS)):
        thing = getattr(chainmesh, name)
        if name.startswith("_") or inspect.ismodule(thing) or not callable(thing):
            continue
        things = {name: thing}
        if inspect.isclass(thing):
            things |= {
                f"{name}.{attribute}": value
                for attribute, value in vars(thing).items()
                if not attribute.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, property))
            }
        for label, each in things.items():
            # A dataclass without a docstring gets its signature for one.
            if not (each.__doc__ or "").strip() or each.__doc__.startswith(f"{name}("):
                wrong.append(label)
    assert not wrong, f"no docstring: {wrong}"


_IMPORT_EVERYTHING = """
    import importlib, os, pkgutil, sys, warnings
    import jax, numpyro, numpyro.infer, numpyro.handlers, jaxtyping, optax
    from jax._src import xla_bridge
    HEAVY = PACKAGES
    heavy_before = {name for name in HEAVY if name in sys.modules}
    environment, config = dict(os.environ), dict(jax.config.values)
    warnings.simplefilter("error")
    import chainmesh
    for module in pkgutil.walk_packages(chainmesh.__path__, "chainmesh."):
        importlib.import_module(module.name)
""".replace("PACKAGES", repr(HEAVY))


def test_importing_changes_nothing():
    """No backend, no heavy package, no warning, no setting of JAX or of the process."""
    answer = fresh(
        _IMPORT_EVERYTHING
        + """
    import json
    print(json.dumps({
        "backend": xla_bridge.backends_are_initialized(),
        "heavy": sorted({name for name in HEAVY if name in sys.modules} - heavy_before),
        "environment": environment == dict(os.environ),
        "config": {k: str(v) for k, v in jax.config.values.items() if config.get(k, 0) != v},
        "strays": sorted({"kernels", "sampler", "sharding"} & set(sys.modules)),
        "modules": sorted(name for name in sys.modules if name.split(".")[0] == "chainmesh"),
    }))
    """
    )
    found = json.loads(answer)
    assert found["backend"] is False, "importing started the JAX backend"
    assert found["heavy"] == []
    assert found["environment"] and found["config"] == {}
    assert found["strays"] == [], "a folder of the repository was imported under its own name"
    # A lenient way of linking the folders may show the front door twice.
    assert {name for name in found["modules"] if "._front" not in name} == set(MODULES)


def test_the_front_door_alone_is_quiet_under_warnings_as_errors():
    assert fresh("import chainmesh; print('quiet')", "-W", "error") == "quiet\n"


def test_a_process_can_fork_after_importing():
    """The child starts its own backend and computes; JAX's warning about forks is an error (jax#20734)."""
    answer = fresh(
        _IMPORT_EVERYTHING
        + """
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    child = os.fork()
    if child == 0:
        warnings.simplefilter("default")
        os._exit(int(jax.numpy.arange(7).sum()))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    )
    assert answer == "21\n"


def _repository_files() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # a source archive, or another user's clone
        skipped = re.compile(
            r"(^|/)(\.git|\.venv[^/]*|build|dist|\.[a-z]+_cache|__pycache__|\.hypothesis)(/|$)"
        )
        files = [path for path in ROOT.rglob("*") if not skipped.search(str(path.relative_to(ROOT)))]
    return [path for path in files if path.is_file()]


def test_nothing_names_the_machine_it_was_written_on():
    """No absolute path of a home or work folder, no registry's host; also in the outputs of notebooks."""
    # Written in pieces, so that this file passes its own test.
    paths = "|".join(("/wo" + "rk/", "/ro" + "ot/", "/tmp/" + "envs", "/ho" + r"me/\w"))
    hosts = "|".join(("pypi" + r"\.org", "python" + "hosted", "registry" + r"\.npmjs", "deb" + r"\.debian"))
    pattern = re.compile(f"{paths}|{hosts}".encode())
    wrong = {
        str(path.relative_to(ROOT)): match.group().decode()
        for path in _repository_files()
        if (match := pattern.search(path.read_bytes()))
    }
    assert len(_repository_files()) > 20
    assert not wrong, wrong
