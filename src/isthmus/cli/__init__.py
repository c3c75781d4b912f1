"""The command line: one thin file a command, imported only when that command runs.

Every command parses, calls one library function and prints: data on stdout, talk on stderr. Exit 0 is success, 1 a
finding or a question without an answer, 2 bad input. Commands load on first use, so `isthmus --help` needs neither
torch nor the time it takes to import a command line library.
"""

import os
import signal
import sys
from importlib import import_module

from isthmus import __version__
from isthmus.errors import InfeasibleError, InputError, nearest

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, str] = {
    "catalog": "Look up GPUs, links, switches, cables, cities, power: each number with its source.",
    "check": "Check a fabric file: reach, compatibility, physics.",
    "workload": "Show a model's parameters, FLOPs, memory and traffic.",
    "plan": "Predict every strategy on a fabric and choose one, with reasons.",
    "collective": "Predict one all-reduce, all-gather ... on a region: time, band, what limits it.",
    "calibrate": "Fit the collective model to a fabric's own measurements.",
    "link": "Say what a long link carries, what binds, what to set, what is impossible.",
    "simulate": "Play a collective or a plan as flows on the fabric's real graph.",
    "try": "Train for real in the wind tunnel: this machine, emulated WAN.",
    "deploy": "Write what runs a plan on real clusters: jobs, settings, checks, what to do.",
    "run": "Start a plan's ranks: one region under torchrun, or all of them here.",
    "watch": "Show what a run does now: regions, links against the plan, who is slow.",
    "doctor": "Name the fault from what nvidia-smi, NCCL, ibstat, dmesg ... printed.",
    "trace": "Write a run's steps, exchanges and stalls as a trace for Perfetto.",
    "bench": "Measure a cluster's collectives under torchrun, or this machine's codecs and copies.",
    "schema": "Print the JSON Schema of a document.",
    "keys": "Make certificates for TLS between regions.",
    "coordinator": "Serve the store through which regions regroup.",
}
_MODULES = {"try": "try_"}  # `try` is a word of Python's own

_EXAMPLES = """\
Examples:
  isthmus check examples/shenzhen-shanghai.yaml
  isthmus plan examples/shenzhen-shanghai.yaml llama-3-8b -o plan.yaml
  isthmus try examples/shenzhen-shanghai.yaml --minutes 5
"""


def main() -> None:
    """Run the command line; the two errors a user can act on end without a traceback."""
    # A polite kill unwinds like Ctrl-C, so that what a command started is ended and removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(sys.argv[1:])
    except InputError as error:
        _fail(f"error: {error}", 2)
    except InfeasibleError as error:
        _fail(f"no answer: {error}", 1)
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        # A path that a user named for reading or writing; everything else of the system's is a bug and keeps its traceback.
        if error.filename is None:
            raise
        _fail(f"error: {error.filename}: {error.strerror}", 2)
    except KeyboardInterrupt:
        _fail("stopped", 128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader left (`| head`): point stdout at nothing, so that the interpreter's last flush is silent too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _run(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in {"--help", "-h", "help"}:
        print(_help())
    elif name == "--version":
        print(f"isthmus {__version__}")
    elif name in COMMANDS:
        _run_command(name, arguments[1:])
    else:
        raise InputError("isthmus", f"unknown command {name!r}", nearest(name, COMMANDS))


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        "Usage: isthmus COMMAND [ARGUMENTS]...\n\n"
        "Train one model on GPU clusters that stand in several regions.\n\n"
        f"Commands:\n{lines}\n\nOptions:\n  --help     This text; `isthmus COMMAND --help` for one command.\n"
        f"  --version  Print the version.\n\n{_EXAMPLES}"
    )


def _run_command(name: str, arguments: list[str]) -> None:
    import typer

    module_name = _MODULES.get(name, name)
    module = import_module(f"isthmus.cli.{module_name}")
    function, title = getattr(module, module_name), f"isthmus {name}"
    nested: dict[str, str] = getattr(module, "SUBCOMMANDS", {})
    if arguments and arguments[0] in nested:
        place, attribute = nested[arguments[0]].split(":")
        module = import_module(place)
        function, title, arguments = getattr(module, attribute), f"{title} {arguments[0]}", arguments[1:]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name=name, epilog=getattr(module, "EXAMPLES", None))(function)
    app(args=arguments, prog_name=title)


def _fail(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)
