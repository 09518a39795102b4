"""Run a training script as it is, and say what is wrong with it: the same data on all ranks, ranks that wait for each
other, models that drift apart, and more. What is said was observed, not guessed.

    torchrun --nproc_per_node=2 -m course.doctor my_train.py --epochs 2
    torchrun --nproc_per_node=2 -m course.doctor --steps 50 --json found.json my_train.py --epochs 2

What follows the script's name is the script's own. The report goes to stderr.

Exit status: 0 where nothing was found; 1 where something was, or the run stalled; the script's own where it failed; 2
for bad input.
"""

import argparse
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from . import findings, seams
from .diary import Diary, innermost
from .exchange import Exchange


def main():
    args = arguments()
    diary = Diary(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    exchange = Exchange(diary, args.timeout)
    seams_ = seams.install(diary, args.steps)
    visit = Visit(args, diary, exchange, seams_)
    exchange.watch(visit.stalled)
    os._exit, visit.leave = visit.left_early, os._exit
    sys.argv = [str(args.script), *args.options]
    sys.path[0] = str(args.script.resolve().parent)
    sys.exit(visit.run())


def arguments():
    parser = argparse.ArgumentParser("python -m course.doctor", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda line: sys.exit(print(f"doctor: error: {line}", file=sys.stderr) or 2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    parser.add_argument("--steps", type=positive(int), metavar="N", help="end after N updates of the weights")
    parser.add_argument("--timeout", type=positive(float), default=60, metavar="S",
                        help="call it a hang when a rank has not moved for S seconds; default: 60")
    parser.add_argument("script", type=Path)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="the script's own")
    args = parser.parse_args()
    if not args.script.is_file():
        parser.error(f"there is no script {args.script}")
    if args.json:
        args.json = args.json.resolve()  # the script may go to another folder
        if not args.json.parent.is_dir():
            parser.error(f"--json: there is no folder {args.json.parent}")
    return args


def positive(kind):
    def number(text):
        if not kind(text) > 0:
            raise argparse.ArgumentTypeError(f"{text} is not a positive number")
        return kind(text)
    return number


class Visit:
    """One rank's run of the script, and the report at its end."""

    def __init__(self, args, diary, exchange, hooks):
        self.args, self.diary, self.exchange, self.hooks = args, diary, exchange, hooks
        self.pid, self.leave = os.getpid(), os._exit

    def run(self):
        """The exit status."""
        status = 0
        try:
            signal.signal(signal.SIGTERM, self.told_to_end)
            runpy.run_path(sys.argv[0], run_name="__main__")
        except seams.Enough:
            self.diary.ended = {"how": f"ended after {self.args.steps} steps, as asked"}
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            self.diary.ended = {"how": f"exit status {status}"}
        except BaseException as error:
            traceback.print_exc()
            status = 130 if isinstance(error, KeyboardInterrupt) else 1
            self.diary.ended = {"how": type(error).__name__, "error": str(error)[:5000],
                                "where": innermost(reversed(list(traceback.walk_tb(error.__traceback__))))}
        self.diary.ended = self.diary.ended or {"how": "done"}
        return self.report(status)

    def report(self, status):
        self.hooks.close()
        diaries = self.exchange.collect(patient=not status)
        if diaries is None:
            return status
        found = findings.judge(diaries, self.diary.world_size)
        text = findings.as_text(found)
        sys.stdout.flush()
        sys.stderr.write(f"{text}\n")  # the script may have replaced print
        sys.stderr.flush()
        if self.args.json:
            part = self.args.json.with_name(self.args.json.name + ".part")
            part.write_text(json.dumps(findings.as_json(found), indent=1) + "\n")
            part.replace(self.args.json)
        self.exchange.reported()
        return status or int(bool(found.findings))

    def stalled(self):
        """Called by the watching thread: nothing has moved for the timeout."""
        self.diary.note("stalled", seconds=self.args.timeout)
        self.leave(self.report(0) or 1)

    def told_to_end(self, number, _):
        sys.exit(128 + number)

    def left_early(self, status):
        """os._exit, which ends a process at once: what has been seen is told first."""
        if os.getpid() == self.pid and self.diary.ended is None:
            self.diary.ended = {"how": f"os._exit({status})"}
            status = self.report(status)
        self.leave(status)


if __name__ == "__main__":
    main()
