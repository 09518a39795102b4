"""Train in two groups under torchft, kill one of them, and wait until both have come to the end.

    python lessons/l11b_restart_one/restart_nothing.py --kill 1@20 --out build/nothing -- --dataset synthetic \\
        --samples 2000

1@20 is group 1, once the other has made step 20. Its torchrun starts it again, and it asks to be taken back. What
stands after -- is main.py's, for lessons/l11b_restart_one/torchft_loop.py.

The folder --out gets a log (group0.jsonl), a console (group0.out) and the last weights (group0.pt) of each group, and
moments.json: `victim`, when it was `killed` (seconds since 1970), and the largest difference of a weight: `apart`,
between the groups; `off`, from the weights in --compare, of which the `largest` is noted, too. What was in the folder
is removed.
Exit status: 0; 1 where it did not come to that (one line says who waited for what); 2 for bad input. No process is
left. Needs torchft: `pip install -e '.[rivals]'`.
"""

import importlib.util
import pickle
import subprocess
import sys
import time
import uuid

import torch

from course import processes, rank_program, rendezvous
from course.failures import Trouble, last_words
from course.interrupted import records
from trainer import files, options

GROUPS = (0, 1)
FILES = ("moments.json", "lighthouse.out",
         *(f"group{group}.{what}" for group in GROUPS for what in ("jsonl", "out", "pt")))
LIGHTHOUSE = "torchft_lighthouse --min_replicas 1 --join_timeout_ms 2000 --heartbeat_timeout_ms 1500 --bind"
TORCHRUN = ("torchrun --nproc_per_node=1 --max-restarts=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 "
            "lessons/l11b_restart_one/torchft_loop.py --group")


class Groups:
    """A lighthouse, and the groups; each with a mark of its own, by which its processes are found."""

    def __init__(self, args, mark):
        self.args, self.folder, self.mark, self.started = args, args.out, mark, {}
        self.give_up = time.monotonic() + args.within
        port = rendezvous.free_port()
        self.env = {**processes.environment(mark), "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
                    "OMP_NUM_THREADS": "1"}
        self.start("lighthouse", f"{LIGHTHOUSE} 127.0.0.1:{port}")
        for group in GROUPS:
            self.start(f"group{group}", f"{TORCHRUN} {group}", *args.options,
                       f"--log-file={self.folder / f'group{group}.jsonl'}",
                       f"--save-model={self.folder / f'group{group}.pt'}")

    def start(self, who, command, *options):
        with open(self.folder / f"{who}.out", "w") as console:
            self.started[who] = subprocess.Popen(
                [*command.split(), *options], env=processes.environment(f"{self.mark}-{who}", self.env),
                stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)

    def wait(self, condition, what):
        """The result of the condition, once it is true. Trouble where --within is over or a process has failed."""
        while not (result := condition()):
            for who, process in self.started.items():
                if process.poll():
                    raise Trouble(f"waited for {what}, and {who} ended: {last_words(self.folder / f'{who}.out')}")
            if self.ended():
                raise Trouble(f"waited for {what}, and the run was over before")
            if time.monotonic() > self.give_up:
                raise Trouble(f"waited for {what}, and --within {self.args.within:g} s are over")
            time.sleep(0.05)
        return result

    def run(self):
        """The moment at which the victim was killed."""
        victim, step = self.args.kill
        other, mark = f"group{GROUPS[1 - victim]}", f"{self.mark}-group{victim}"
        self.wait(lambda: any(record["kind"] == "step" and record["step"] >= step
                              for record in records(self.folder / f"{other}.jsonl")), f"step {step:g} of {other}")
        self.wait(lambda: processes.find_rank(mark, 0), f"the rank of group{victim}").kill()
        killed = time.time()
        self.wait(self.ended, "the end of both groups")
        return killed

    def ended(self):
        return all(self.started[f"group{group}"].poll() == 0 for group in GROUPS)


def difference(mine, others):
    """The largest difference of a weight between two models' weights, {name: tensor}."""
    return max((mine[name] - others[name]).abs().max().item() for name in mine)


def weights(path):
    """What main.py's --save-model has written; ValueError for another file."""
    try:
        return torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError):
        raise ValueError(f"--compare {path}: holds no weights, as main.py --save-model writes them") from None


def main():
    parser = rank_program.parser(__doc__)
    parser.usage = "%(prog)s --kill GROUP@STEP --out FOLDER [options] -- [main.py's options]"
    add = parser.add_argument
    add("--kill", type=rank_program.moment("GROUP@STEP", 1, "groups count from 0, and steps from 1"),
        metavar="GROUP@STEP", required=True)
    add("--out", type=options.nonempty_path, required=True, metavar="FOLDER")
    add("--compare", type=options.nonempty_path, metavar="FILE",
        help="weights of an undisturbed run, as main.py saves them")
    add("--within", type=options.positive(float), default=150, metavar="SECONDS",
        help="end everything then; default: 150")
    args = rank_program.before_dashes(parser, ["--group", "--groups", "--log-file", "--save-model"])
    if args.kill[0] not in GROUPS:
        parser.error(f"--kill: there is no group {args.kill[0]}; there are {len(GROUPS)}")
    if not importlib.util.find_spec("torchft"):
        parser.error("torchft is not installed: pip install -e '.[rivals]'")
    mark = uuid.uuid4().hex
    try:
        with rank_program.stoppable(parser):
            files.check_writable("--out", args.out)
            if args.compare:
                files.check_input("--compare", args.compare)
                undisturbed = weights(args.compare)
            for name in FILES:
                (args.out / name).unlink(missing_ok=True)
            try:
                groups = Groups(args, mark)
                killed = groups.run()
            finally:
                processes.end(mark)
            models = [weights(args.out / f"group{group}.pt") for group in GROUPS]
            rank_program.write_json(args.out / "moments.json", {
                "victim": args.kill[0], "killed": killed, "apart": difference(*models),
                "off": difference(models[0], undisturbed) if args.compare else None,
                "largest": max(value.abs().max().item() for value in undisturbed.values()) if args.compare else None})
    except Trouble as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
