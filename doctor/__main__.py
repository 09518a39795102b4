"""Run a training script as it is, and report its mistakes: the same data on all ranks, ranks that wait for each other,
models that drift apart, and more. Each was observed, not guessed.

    torchrun --nproc_per_node=2 -m doctor my_train.py --epochs 2
    torchrun --nproc_per_node=2 -m doctor --steps 50 --json found.json my_train.py --epochs 2
    torchrun --nproc_per_node=2 --no-python ddp-doctor my_train.py     the same, after `pip install ./doctor`
    ddp-doctor --explain same_data                                     what a finding means, and its repair
    python -m doctor --scale my_train.py                               the scale of its gradients on 2 and 3 ranks
    python -m doctor --pretend 128x8 my_train.py --epochs 1            as a few ranks of 128 nodes, on one CPU
    torchrun --nproc_per_node=2 -m doctor --film run.html my_train.py  no report: a film, to step through rank by rank
    python -m doctor --film run.html                                   merges what killed ranks have left
    torchrun --nnodes=2 --nproc_per_node=8 … -m doctor --preflight     before a long job: machines and connections

Options after the script's name go to the script. The report goes to stderr.

Exit status: 0 if nothing was found; 1 if something was, or if the run stalled; the script's own if it failed; 2 for bad
input. torchrun makes 1 of each that is not 0.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from . import __version__, runner
from .report import Explain


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"doctor: error: {message}", file=sys.stderr)
        sys.exit(2)


def arguments() -> argparse.Namespace:
    parser = Parser("python -m doctor", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"ddp-doctor {__version__}")
    parser.add_argument("--explain", nargs="?", action=Explain, metavar="NAME",
                        help="say what a finding means, how to look, and its repair; without a name, list all findings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file, too, as JSON")
    parser.add_argument("--film", type=Path, metavar="FILE", help="record the run: FILE.json is a Chrome trace, which "
                        "https://ui.perfetto.dev opens, FILE.html a page of its own. All ranks must see its folder")
    parser.add_argument("--steps", type=steps, metavar="N", help="end after N updates of the weights; with --film, "
                        "record only these steps: 3:8 are 3 to 7, 8 is 0 to 7")
    parser.add_argument("--lines", action="store_true", help="trace the script's lines to the end: it takes "
                        "longer, and names the line at which ranks went different ways, however late")
    parser.add_argument("--scale", action="store_true", help="run it on 2 and on 3 ranks, without torchrun: does "
                        "the scale of its gradients depend on their number?")
    parser.add_argument("--timeout", type=number, default=60, metavar="S",
                        help="call it a hang when no rank has moved for S seconds; with --preflight, wait so "
                        "long for all ranks to start; default: 60")
    parser.add_argument("--pretend", type=job, metavar="NODESxGPUS",
                        help="run a few ranks of such a job on this CPU, without torchrun; --steps is then the batches "
                        "of a pass over a DataLoader (default: 3), --timeout the seconds of a rank")
    parser.add_argument("--alpha", type=number, metavar="S", help="latency of the pretended job's network")
    parser.add_argument("--beta", type=number, metavar="S", help="seconds a byte takes on a node's link: "
                        "1 / bandwidth; with --alpha, estimate the seconds of a step's messages")
    parser.add_argument("--preflight", action="store_true", help="no script: test these ranks and their connections, "
                        "a minute at most. Status 1 if one of them is in trouble")
    parser.add_argument("script", type=Path, nargs="?")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the script")
    args = parser.parse_args()
    if args.preflight:
        if args.script or args.film or args.pretend or args.scale:
            parser.error("--preflight goes alone: it runs no script")
        if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
            parser.error(f"--preflight needs ranks ({missing[0]} is not set): torchrun … -m doctor --preflight")
    elif args.script is None and not args.film:
        parser.error("name a script")
    if args.script is not None and not args.script.is_file():
        parser.error(f"there is no script {args.script}")
    if args.film:
        film_options(parser, args)
    elif args.steps and args.steps.start:
        parser.error("--steps: a first step is for --film")
    if args.scale and (args.film or args.pretend):
        parser.error("--scale goes alone")
    if (args.alpha or args.beta) and not (args.pretend and args.alpha and args.beta):
        parser.error("--alpha and --beta go together, with --pretend")
    if args.json:
        args.json = written_to(parser, "--json", args.json)
        if os.environ.get("RANK", "0") == "0":
            args.json.unlink(missing_ok=True)  # of an earlier run
    return args


def written_to(parser: argparse.ArgumentParser, option: str, path: Path) -> Path:
    """The path of a file that is to be written, from the root: the script may go to another folder."""
    path = path.resolve()
    if not path.parent.is_dir():
        parser.error(f"{option}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        parser.error(f"{option}: {path} is no regular file")
    if not os.access(path.parent, os.W_OK):
        parser.error(f"{option}: no file may be written into {path.parent}")
    return path


def film_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.film.suffix not in (".json", ".html"):
        parser.error(f"--film {args.film}: name a file that ends with .json or .html")
    if args.json or args.pretend:
        parser.error("--film records the run and judges nothing: leave out --json and --pretend")
    args.film = written_to(parser, "--film", args.film)
    if args.script is None and not any(args.film.parent.glob(f"{args.film.name}.rank*")):
        parser.error(f"--film {args.film}: no rank has left anything there; name a script")


def steps(text: str) -> range:
    """A range of steps: 8 is 0 to 7, 3:8 is 3 to 7."""
    first, _, end = text.rpartition(":")
    try:
        chosen = range(int(first or 0), int(end))
    except ValueError:
        chosen = range(0)
    if not chosen or chosen.start < 0:
        raise argparse.ArgumentTypeError(f"{text} are no steps: write 8, or 3:8")
    return chosen


def number(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def job(text: str) -> tuple[int, int]:
    nodes, _, gpus = text.partition("x")
    if not (nodes.isdecimal() and gpus.isdecimal() and int(nodes) * int(gpus) > 1):
        raise argparse.ArgumentTypeError(f"{text} is no job: 128x8 is 128 nodes with 8 GPUs each")
    return int(nodes), int(gpus)


def main() -> None:
    args = arguments()
    if args.preflight:
        from . import preflight
        sys.exit(preflight.run(args.json, args.timeout))
    if args.film:
        from . import film
        sys.exit(film.script(args))
    args.steps = args.steps and args.steps.stop
    if args.scale:
        from . import scale
        sys.exit(scale.compare(args))
    if args.pretend:
        from . import pretend
        sys.exit(pretend.examine(args))
    sys.exit(runner.script(args))


if __name__ == "__main__":
    main()
