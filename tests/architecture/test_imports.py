"""The promises about what is imported: torch only where it must be, and the layers of ARCHITECTURE.md."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import isthmus
import isthmus.cli

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=False)


def test_every_room_but_runtime_imports_where_torch_cannot() -> None:
    names = [
        name for _, name, _ in pkgutil.walk_packages(isthmus.__path__, "isthmus.")
        if not name.startswith("isthmus.runtime") and not name.endswith("__main__")
    ]
    assert len(names) > 30
    code = WITHOUT_TORCH + "import importlib, json\nfor n in json.loads(sys.argv[1]): importlib.import_module(n)"
    done = run(code, json.dumps(names))
    assert done.returncode == 0, done.stderr


def test_help_and_plan_run_where_torch_cannot_be_imported() -> None:
    fabric = str(Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml")
    for args in (["--help"], ["plan", "--help"], ["plan", fabric, "llama-3-8b", "--json"]):
        done = run(WITHOUT_TORCH + f"sys.argv = ['isthmus', *{args!r}]\nfrom isthmus.cli import main\nmain()")
        assert done.returncode == 0, (args, done.stderr)
        assert done.stdout


def test_importing_isthmus_imports_neither_torch_nor_the_command_line() -> None:
    done = run("import sys, isthmus; print([m for m in ('torch', 'typer', 'numpy', 'pydantic') if m in sys.modules])")
    assert done.stdout.strip() == "[]"


def test_help_names_every_command_and_every_command_has_help() -> None:
    listed = run("import sys; sys.argv = ['isthmus', '--help']\nfrom isthmus.cli import main\nmain()").stdout
    for name in isthmus.cli.COMMANDS:
        assert f"  {name} " in listed
        done = run(f"import sys; sys.argv = ['isthmus', {name!r}, '--help']\nfrom isthmus.cli import main\nmain()")
        assert done.returncode == 0, done.stderr
        assert f"Usage: isthmus {name}" in done.stdout


def test_no_file_passes_the_wall_of_600_lines() -> None:
    root = Path(__file__).parents[2]
    long = {str(p.relative_to(root)): n for p in [*root.glob("src/**/*.py"), *root.glob("tests/**/*.py")]
            if (n := len(p.read_text(encoding="utf-8").splitlines())) > 600}
    assert long == {}
