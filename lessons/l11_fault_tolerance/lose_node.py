"""What becomes of a training when its nodes are in trouble: two nodes out of network namespaces, see lab_cluster.py.

    python lessons/l11_fault_tolerance/lose_node.py rejoin --out build/rejoin -- --dataset synthetic \\
        --global-batch-size 64
    python lessons/l11_fault_tolerance/lose_node.py cut --out build/cut -- --dataset synthetic --timeout 5

rejoin  An elastic torchrun, --nnodes=1:2, with checkpoints. Once both nodes have trained --epochs epochs, node1 is
        killed. Once node0 has trained as many alone, node1 comes back; and after as many of both, all are told to stop
        (SIGTERM), which leaves a run that can be resumed.
cut     The link of node1 is cut after --epochs epochs. Nothing is killed: both wait, until main.py's --timeout.

What stands after -- is main.py's. The folder --out gets the run log (run.jsonl), the consoles (node0.out, node1.out)
and the moments (moments.json: {what: seconds since 1970}). What was in it is removed.
Exit status: 0 if all of it happened, 1 if it did not (one line says who waited for what), 2 for bad input, and where
the system does not permit namespaces.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

from course import processes, rank_program
from course.failures import Trouble, last_words
from course.hosts import Cluster
from course.interrupted import records
from trainer import options

FILES = ("run.jsonl", "node0.out", "node1.out", "moments.json", "kept", "kept.previous", "kept.lock", "kept.part")
ELASTIC = ("torchrun --nnodes=1:2 --nproc-per-node=1 --max-restarts=9 --rdzv-backend=c10d --rdzv-id=11 "
           "--rdzv-endpoint=node0:29400 --rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3")
STATIC = ("torchrun --nnodes=2 --node-rank={node} --nproc-per-node=1 --master-addr=node0 --master-port=29500 "
          "--rdzv-conf=timeout=60")
SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # without it torch 2.14 and 2.15 do not take a node back


class Lab:
    """A run of main.py on the hosts of a cluster, and what its log says."""

    def __init__(self, cluster, args):
        self.cluster, self.args, self.folder, self.log = cluster, args, args.out, args.out / "run.jsonl"
        self.moments, self.torchruns = {"began": time.time()}, {}
        self.console = self.folder / "node0.out"

    def start(self, node, launcher, *options):
        command = [*launcher.format(node=node).split(), "main.py", "--epochs", str(10**6), *self.args.options,
                   "--log-file", str(self.log), *options]
        if node not in self.torchruns:
            print(f"node{node}$ {' '.join(command)}", flush=True)
        with open(self.folder / f"node{node}.out", "a") as console:
            self.torchruns[node] = self.cluster.start(
                node, command, env={**os.environ, "OMP_NUM_THREADS": "1", SWITCH: "1"}, stdin=subprocess.DEVNULL,
                stdout=console, stderr=subprocess.STDOUT)

    def trained_by(self, nodes):
        """Epochs since the run has last had so many nodes; 0 while it has another number of them."""
        size, epochs = 0, 0
        for record in records(self.log):
            if record["kind"] in ("run", "restart"):
                size, epochs = record["world_size"], 0  # a rank a node
            epochs += record["kind"] == "epoch"
        return epochs if size == nodes else 0

    def wait(self, condition, what):
        """Until the condition holds. Trouble where it takes --within seconds, or node0's torchrun ends first."""
        give_up = time.monotonic() + self.args.within
        while not condition():
            if self.torchruns[0].poll() is not None and not condition():
                raise Trouble(f"waited for {what}, and node0's torchrun ended: {last_words(self.console)}")
            if time.monotonic() > give_up:
                raise Trouble(f"waited {self.args.within:g} s for {what}: {last_words(self.console)}")
            time.sleep(0.05)

    def at(self, what):
        self.moments[what] = time.time()
        print(f"{self.moments[what] - self.moments['began']:5.1f} s: {what}", flush=True)


def rejoin(lab):
    keep, epochs = ("--checkpoint", str(lab.folder / "kept"), "--checkpoint-every", "10"), lab.args.epochs
    for node in (0, 1):
        lab.start(node, ELASTIC, *keep)
    lab.wait(lambda: lab.trained_by(2) >= epochs, f"{epochs} epochs of both nodes")
    lab.cluster.kill(1)
    lab.at("node1 is killed")
    lab.wait(lambda: lab.trained_by(1) >= epochs, f"{epochs} epochs of node0 alone")
    lab.cluster.restart(1)
    lab.start(1, ELASTIC, *keep)
    lab.at("node1 is started again")
    lab.wait(lambda: lab.trained_by(2) >= epochs, f"{epochs} epochs of both nodes again")
    lab.at("both are told to stop (SIGTERM)")
    for torchrun in lab.torchruns.values():
        torchrun.send_signal(signal.SIGTERM)
    lab.wait(lambda: records(lab.log)[-1]["kind"] == "end", "the end of the run")


def cut(lab):
    for node in (0, 1):
        lab.start(node, STATIC)
    lab.wait(lambda: lab.trained_by(2) >= lab.args.epochs, f"{lab.args.epochs} epochs of both nodes")
    lab.cluster.cut(1)
    lab.at("the link of node1 is cut")
    lab.wait(lambda: records(lab.log)[-1]["kind"] == "end", "node0 to give up")
    lab.at("node0 gives up")


def main():
    parser = rank_program.parser(__doc__)
    parser.usage = "%(prog)s {rejoin,cut} --out FOLDER [options] -- [main.py's options]"
    add = parser.add_argument
    add("what", choices=["rejoin", "cut"])
    add("--out", type=options.nonempty_path, required=True, metavar="FOLDER",
        help="gets the log, the consoles and the moments")
    add("--epochs", type=options.positive(int), default=2, help="of each part; default: 2")
    add("--within", type=options.positive(float), default=90, metavar="SECONDS",
        help="longest wait for each step; default: 90")
    args = rank_program.before_dashes(parser, ["--epochs", "--log-file", "--checkpoint", "--checkpoint-every"])
    try:
        with rank_program.stoppable(parser), Cluster(2) as cluster:
            args.out.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                (args.out / name).unlink(missing_ok=True)
            lab = Lab(cluster, args)
            {"rejoin": rejoin, "cut": cut}[args.what](lab)
            rank_program.write_json(args.out / "moments.json", lab.moments)
            for torchrun in lab.torchruns.values():  # the agents' own last words; one that is cut off may have none
                with contextlib.suppress(subprocess.TimeoutExpired):
                    torchrun.wait(5)
        for console in args.out.glob("node*.out"):
            console.write_text(processes.without_folders(console.read_text()))
    except Trouble as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
