"""The command line: ``numbadnn info | validate | explain``. It parses, calls and prints; the work is done elsewhere.

Exit status: 0 all good, 1 a mismatch, 2 wrong usage, 3 the environment cannot run what was asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

#: named by the plan of the command line, not built yet
LATER = ("bench", "tune")
LATER_FLAGS = ("--determinism", "--compare")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numbadnn", description="Deep-learning primitives on any array.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{info,validate,explain}")
    info = commands.add_parser("info", help="versions, GPUs, cuDNN, options, operations x backends")
    info.add_argument("--json", action="store_true", help="the same as JSON")
    check = commands.add_parser(
        "validate",
        help="every implementation against the float64 reference, on this machine",
        description="Exit status: 0 all agree, 1 a mismatch, 2 wrong usage, 3 nothing that was asked for can run here.",
    )
    check.add_argument(
        "names",
        nargs="*",
        metavar="OP|CASE",
        help="operations, cases, patterns ('resnet50/*') or problem lines; default: all",
    )
    check.add_argument("--data", nargs="+", metavar="FILE.npy", help="arrays of your own for one operation")
    check.add_argument("--backend", choices=("cudnn", "numba", "cpu"), help="this backend alone")
    check.add_argument("--budget", type=_seconds, metavar="SECONDS", help="start no further case after this time")
    check.add_argument("--json", metavar="FILE", help="write all results there")
    explain = commands.add_parser("explain", help="which implementation runs a case, and why the others do not")
    explain.add_argument("case", nargs="+", metavar="CASE", help="a case, a pattern or a problem line")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; argparse leaves with status 2 itself."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    if words and words[0] in LATER:
        parser.error(f"{words[0]!r} is not available in this version; commands are info, validate, explain")
    for flag in LATER_FLAGS:
        if words[:1] == ["validate"] and any(w == flag or w.startswith(flag + "=") for w in words):
            parser.error(f"validate {flag} is not available in this version")
    options = parser.parse_args(words)
    try:
        return {"info": _info, "validate": _validate, "explain": _explain}[options.command](options)
    except (ValueError, TypeError, OSError) as error:
        print(f"numbadnn {options.command}: {error}", file=sys.stderr)
        return 2


def _info(options: argparse.Namespace) -> int:
    from numbadnn import info

    print(json.dumps(info.collect(), indent=1, default=str) if options.json else info.text())
    return 0


def _validate(options: argparse.Namespace) -> int:
    from numbadnn.validate.run import validate

    return validate(_lines(options.names), options.backend, options.budget, options.json, options.data)


def _explain(options: argparse.Namespace) -> int:
    from numbadnn.info import explanations

    found = explanations(_lines(options.case))
    print("\n\n".join(map(str, found)))
    return 0 if all(e.chosen for e in found) else 3


def _lines(words: list[str]) -> list[str]:
    """Words of a problem line that was not quoted are joined again."""
    return [" ".join(words)] if len(words) > 1 and all("=" in w for w in words[1:]) else words


if __name__ == "__main__":
    sys.exit(main())
