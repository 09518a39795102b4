"""Kill ranks of a training at the moments you choose, or send them another signal, and wait for the end of the run.

    python lessons/l11_fault_tolerance/kill_rank.py --kill 1@2.5 -- torchrun --nproc_per_node=2 --max-restarts=1 \\
        main.py --epochs 6
        --checkpoint build/kept --checkpoint-every 10 --log-file build/run.jsonl
    python lessons/l11_fault_tolerance/kill_rank.py --kill 1@2.5 --kill 0@4 -- torchrun --max-restarts=2 ...
    python lessons/l11_fault_tolerance/kill_rank.py --kill 1@2.5 --again -- torchrun --nproc_per_node=2 main.py ...

1@2.5 is rank 1 in the middle of epoch 2 (epochs count from 0; the first that can be hit is 1). The moment is found in
the run's log: the record of epoch 1, and half of its seconds more. What the run says is printed when it is over.

Exit status: that of the command; 1 where it ended before all kills were done; 124 where it was not done --within
seconds, and was ended; 2 for bad input. No process is left behind.
"""

import signal
import sys
import threading
import time
import uuid

from course import processes, rank_program
from course.interrupted import records
from trainer import files, options

POLL = 0.05  # seconds between two looks at the log


class Killer(threading.Thread):
    """Sends the signal at each moment of the plan. `done`: a dict a kill; `error`: why there will be no more, or
    None."""

    def __init__(self, plan, log, mark, number=signal.SIGKILL):
        super().__init__(daemon=True)
        self.number = number
        self.plan, self.log, self.mark = sorted(plan, key=lambda kill: kill[1]), log, mark
        self.begin = log.stat().st_size if log.exists() else 0
        self.over, self.done, self.error = threading.Event(), [], None

    def run(self):
        for rank, epoch in self.plan:
            finished = self.wait_for(lambda last=int(epoch) - 1: self.finished(last))
            if finished is None or self.over.wait((epoch % 1) * finished["seconds"]):
                return
            size = self.world_size()
            if rank >= size:
                self.error = f"there is no rank {rank} to kill: the run has {size}"
                return processes.end(self.mark)
            victim = self.wait_for(lambda rank=rank: processes.find_rank(self.mark, rank))  # none at a new start
            if victim is None:
                return
            victim.send_signal(self.number)
            self.done.append({"rank": rank, "epoch": epoch, "time": time.time()})

    def wait_for(self, condition):
        """The result of the condition, once it is not None; None where the run is over first."""
        while not self.over.wait(POLL):
            if (result := condition()) is not None:
                return result

    def finished(self, epoch):
        return {record["epoch"]: record for record in records(self.log, self.begin)
                if record["kind"] == "epoch"}.get(epoch)

    def world_size(self):
        return [record["world_size"] for record in records(self.log, self.begin)
                if record["kind"] in ("run", "restart")][-1]


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--kill", type=rank_program.moment("RANK@EPOCH", 1,
        "ranks count from 0, and the first epoch that can be hit is 1"),
        metavar="RANK@EPOCH", action="append", required=True, help="may be repeated")
    add("--signal", choices=["KILL", "TERM", "USR1"], default="KILL", help="what to send; default: KILL")
    add("--within", type=options.positive(float), default=120, metavar="SECONDS",
        help="end everything then; default: 120")
    add("--again", action="store_true", help="after the kills start the failed command once more, as a queue would do")
    add("--out", type=options.nonempty_path, metavar="FILE", help="write the kills and what was said there, as JSON")
    add("command", nargs="+", metavar="COMMAND", help="torchrun ... main.py ... --log-file FILE, after --")
    args = parser.parse_args()
    main_py = options.Parser(add_help=False, allow_abbrev=False)
    main_py.add_argument("--log-file", type=options.nonempty_path)
    log = main_py.parse_known_args(args.command)[0].log_file
    if log is None:
        parser.error("the command has no --log-file: without the log nobody knows which epoch it is")
    mark = uuid.uuid4().hex
    killer = Killer(args.kill, log, mark, signal.Signals[f"SIG{args.signal}"])
    with rank_program.stoppable(parser, signal.default_int_handler):  # a stop from outside ends the run, too
        if args.out:
            files.check_output("--out", args.out)
        killer.start()
        try:
            status, output = processes.run_and_read(args.command, args.within, mark)
            if args.again and status and len(killer.done) == len(args.kill):
                status, again = processes.run_and_read(args.command, args.within, mark)
                output += again
        finally:
            killer.over.set()
            killer.join()
    print(output, end="", flush=True)
    if args.out:
        rank_program.write_json(args.out, {"kills": killer.done, "said": output.splitlines()})
    if status is None:
        killer.error = f"not done within {args.within:g} s, and ended"
    missing = [f"rank {rank} at epoch {epoch:g}" for rank, epoch in killer.plan[len(killer.done):]]
    if killer.error or (missing and status == 0):
        print(f"kill_rank.py: {killer.error or 'the run was over before ' + ', '.join(missing)}", file=sys.stderr)
    sys.exit(124 if status is None else status or int(bool(missing)))


if __name__ == "__main__":
    main()
