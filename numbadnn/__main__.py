"""The command line: ``numbadnn info | validate | explain | bench | tune | warm``. It parses, calls, prints; others do the work.

Exit status: 0 all good, 1 a mismatch or an implementation that failed, 2 wrong usage, 3 the environment cannot run what was
asked, 4 a budget ended before all that was asked for ran, 70 an error of numbadnn's own, 130 interrupted (Ctrl-C), 141 where
whoever reads the output has closed it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import math
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from numbadnn._version import __version__
from numbadnn.call.planning import check_compiler
from numbadnn.config import from_environment
from numbadnn.errors import NumbaDNNError
from numbadnn.host import compiling
from numbadnn.host.files import as_json

if TYPE_CHECKING:
    from numbadnn.validate.documents.files import Files

#: ``--jobs`` at most: more is a slip of the hand
MOST_PROCESSES = 1024


_DONE = (
    "Exit status: 0 done, 2 wrong usage, 3 nothing that was asked for can run here, 4 the budget ended before all ran."
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numbadnn", description="Deep-learning primitives on any array.")
    parser.add_argument("--version", action="version", version=f"numbadnn {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{info,validate,explain,bench,tune,warm}")
    info = commands.add_parser("info", help="versions, GPUs, cuDNN, options, operations x backends")
    info.add_argument("--json", action="store_true", help="the same as JSON")
    check = commands.add_parser(
        "validate",
        help="every implementation against the float64 reference, on this machine",
        description="Exit status: 0 all agree, 1 a mismatch or an implementation that failed, 2 wrong usage, "
        "3 nothing that was asked for can run here, 4 the budget ended before all that was asked for ran.",
    )
    check.add_argument(
        "names",
        nargs="*",
        metavar="OP|CASE|MODEL.onnx",
        help="operations, cases, patterns ('resnet50/*'), problem lines or @FILE of such, as NUMBADNN_VERBOSE=exec prints "
        "them; default: all; or one ONNX model, node by node",
    )
    check.add_argument(
        "--data",
        nargs="+",
        metavar="FILE",
        help="arrays of your own (.npy, .npz, .safetensors, or OPERAND=FILE) for one operation, which stands before them with "
        "its parameters: 'conv2d pad=1,1,1,1'",
    )
    check.add_argument("--backend", choices=("cudnn", "numba", "cpu"), help="this backend alone")
    check.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help="start no further case after this time; what is left then makes the run incomplete (status 4)",
    )
    asked = check.add_mutually_exclusive_group()
    asked.add_argument(
        "--sample",
        type=_seconds,
        metavar="SECONDS",
        help="as many cases as are begun in this time (170, where there is no GPU and nothing else is asked for)",
    )
    asked.add_argument("--all", action="store_true", help="every case, however long it takes")
    _reports(check)
    check.add_argument(
        "--determinism", action="store_true", help="measure levels of determinism, and write the errata file"
    )
    check.add_argument(
        "--jobs",
        type=_processes,
        metavar="N",
        help="processes side by side (with a GPU as many as cores and memory allow, else 1; --determinism: 1)",
    )
    check.add_argument("--compare", nargs=2, metavar="FILE.json", help="hold two reports of --determinism together")
    model = check.add_argument_group("models")
    model.add_argument("--input", metavar="FILE.npz", help="the model's inputs by name; those left out are random")
    model.add_argument(
        "--dim",
        action="append",
        metavar="NAME=SIZE",
        help="an open size: N=1, or INPUT.AXIS=224; a first axis is 1",
    )
    model.add_argument("--against", choices=("onnxruntime",), help="judge every step of this runtime too")
    explain = commands.add_parser("explain", help="which implementation runs a case, and why the others do not")
    explain.add_argument("case", nargs="+", metavar="CASE", help="a case, a pattern or a problem line")
    explain.add_argument(
        "--export", choices=("torch", "benchdnn"), help="print the same computation for that library instead"
    )
    explain.add_argument("--json", action="store_true", help="the same as JSON")
    bench = commands.add_parser(
        "bench",
        help="time every implementation of a case on this machine",
        description=_DONE,
    )
    bench.add_argument("names", nargs="*", metavar="OP|CASE", help="as for tune; default: the bench cases")
    bench.add_argument("--backend", choices=("cudnn", "numba", "cpu"), help="this backend alone")
    bench.add_argument("--budget", type=_seconds, metavar="SECONDS", help="start no further case after this time")
    _reports(bench)
    tune = commands.add_parser(
        "tune",
        help="measure every implementation of a case and keep the fastest",
        description=_DONE,
    )
    tune.add_argument(
        "names", nargs="*", metavar="OP|CASE", help="as for validate, or a network (resnet50); default: the bench cases"
    )
    tune.add_argument("--budget", type=_seconds, metavar="SECONDS", help="start no further case after this time")
    _reports(tune)
    tune.add_argument(
        "--seconds",
        type=_seconds,
        default=12.0,
        help="for one case, candidates left after them are not looked at (12)",
    )
    tune.add_argument(
        "--jobs", type=_processes, default=1, metavar="N", help="processes that plan and check side by side"
    )
    warm = commands.add_parser(
        "warm",
        help="compile ahead what first calls need, into the user's cache folder",
        description="For images and CI: a process that finds the kernels on disk compiles nothing. "
        "Exit status: 0 done, 2 wrong usage, 3 nothing can be kept, or run, here.",
    )
    warm.add_argument("names", nargs="*", metavar="OP|CASE", help="as for validate; default: all operations")
    warm.add_argument(
        "--dtype",
        nargs="+",
        choices=("float16", "bfloat16", "float32", "float64"),
        default=["float32"],
        help="types of the arrays (float32)",
    )
    warm.add_argument("--gpu", action="store_true", help="the kernels of this GPU too")
    return parser


def _reports(parser: argparse.ArgumentParser) -> None:
    """The files that a run may leave."""
    files = parser.add_argument_group("reports")
    for form, what in (
        ("json", "everything that was found (docs/reference/report.schema.json)"),
        ("html", "one page to read and to hand on (needs numbadnn[report])"),
        ("junit", "JUnit XML, for CI servers"),
        ("csv", "a row a line, for spreadsheets"),
    ):
        files.add_argument(f"--{form}", type=_file, metavar="FILE", help=what)


def _files(options: argparse.Namespace) -> Files:
    from numbadnn.validate.documents.files import Files

    return Files(options.json, options.html, options.junit, options.csv)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return value


def _file(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file, got ''")
    return text


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of processes, at least 1, got {text}")
    if int(text) > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"expected {MOST_PROCESSES} processes at most, got {text}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; argparse leaves with status 2 itself."""
    for name in ("stdout", "stderr"):  # closed by whoever started this
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be text of the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help()
        return 0
    run = {"info": _info, "validate": _validate, "explain": _explain, "bench": _bench, "tune": _tune, "warm": _warm}
    try:
        compiling.be_silent()
        from_environment()  # a value that is none is wrong usage of every command, not an error of each case
        if options.command in ("bench", "tune") or (options.command == "validate" and not options.compare):
            check_compiler()
        status = run[options.command](options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has enough of it
        with contextlib.suppress(OSError, ValueError):  # Python flushes it once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what shells give a program that SIGPIPE ended
    except (ValueError, TypeError, OverflowError, OSError, Warning) as error:  # a warning: python -W error
        print(f"numbadnn {options.command}: {error}", file=sys.stderr)
        return 3 if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT) else 2
    except (NumbaDNNError, MemoryError) as error:
        print(f"numbadnn {options.command}: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"\nnumbadnn {options.command}: interrupted", file=sys.stderr)
        return 130  # what shells give a program that Ctrl-C ended
    except Exception:  # Python's own status for it would be 1, a mismatch
        traceback.print_exc()
        print(f"numbadnn {options.command}: an error of numbadnn's own, not of what was asked", file=sys.stderr)
        return 70  # EX_SOFTWARE of sysexits.h


def _info(options: argparse.Namespace) -> int:
    from numbadnn.call import info

    print(as_json(info.collect(), indent=1, default=str) if options.json else info.text())
    return 0


def _validate(options: argparse.Namespace) -> int:
    if options.determinism or options.compare:
        return _determinism(options)
    if any(name.endswith(".onnx") for name in options.names) or options.input or options.dim or options.against:
        return _model(options)
    from numbadnn.validate.run import seconds_of_sample, validate

    names = _lines(options.names)
    sample = options.sample or (None if options.data else seconds_of_sample(names, options.budget, options.all))
    if options.sample and options.budget:
        raise ValueError(f"--sample: expected no --budget beside it, got {options.budget:g}")
    return validate(names, options.backend, options.budget, _files(options), options.data, options.jobs, sample)


def _model(options: argparse.Namespace) -> int:
    from numbadnn.validate.model import command

    if len(options.names) != 1 or not options.names[0].endswith(".onnx"):
        raise ValueError(
            f"expected one MODEL.onnx by itself (--input, --dim and --against are of models), got {options.names}"
        )
    for name in ("data", "budget", "sample", "all", "jobs"):
        if getattr(options, name):
            raise ValueError(f"--{name}: expected cases, not a model")
    return command.run(options.names[0], options.backend, options.input, options.dim, options.against, _files(options))


def _determinism(options: argparse.Namespace) -> int:
    from numbadnn.validate.determinism import report
    from numbadnn.validate.determinism.rows import compare

    if options.compare:
        others = (
            "names",
            "determinism",
            "data",
            "backend",
            "budget",
            "sample",
            "all",
            "json",
            "html",
            "junit",
            "csv",
            "jobs",
            "input",
            "dim",
            "against",
        )
        given = [name if name == "names" else f"--{name}" for name in others if getattr(options, name)]
        if given:
            raise ValueError(f"--compare: expected nothing but two files, got {', '.join(given)} too")
        return compare(*options.compare)
    for name in ("data", "sample", "all", "input", "dim", "against"):
        if getattr(options, name):
            raise ValueError(f"--determinism: expected cases, not --{name}")
    return report.run(_lines(options.names), options.backend, options.budget, _files(options), options.jobs or 1)


def _explain(options: argparse.Namespace) -> int:
    if options.export:
        if options.json:
            raise ValueError("--export: expected no --json beside it, it prints one line a case")
        from numbadnn.cases import find
        from numbadnn.commands.export import export

        print("\n".join(export(case.problem(), options.export) for case in find(_lines(options.case))))
        return 0
    from numbadnn.commands.explain import explanations

    found = explanations(_lines(options.case))
    if options.json:
        print(as_json([e.as_dict() for e in found], indent=1))
        return 0 if all(e.chosen for e in found) else 3
    print("\n\n".join(map(str, found)))
    return 0 if all(e.chosen for e in found) else 3


def _bench(options: argparse.Namespace) -> int:
    from numbadnn.commands.bench import run

    return run(_lines(options.names), options.backend, options.budget, _files(options))


def _tune(options: argparse.Namespace) -> int:
    from numbadnn.commands.tune import run

    return run(_lines(options.names), options.budget, _files(options), options.jobs, options.seconds)


def _warm(options: argparse.Namespace) -> int:
    from numbadnn.commands.warm import run

    return run(_lines(options.names), options.dtype, options.gpu)


def _lines(words: list[str]) -> list[str]:
    """Names, with those of files in the place of ``@FILE``; words of a problem line that was not quoted are joined again."""
    from numbadnn.commands import lines

    return lines.expanded(words)


if __name__ == "__main__":
    sys.exit(main())
