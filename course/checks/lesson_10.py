"""Exercises of notebook 10. What a command means is asked of torchrun's own parser. The restarts and what the
launchers pass are held against real launchers in tests/test_launchers.py."""

import argparse

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses
from course.checks.commands import parsed, without_exit


# Exercise 1: the local rank
def local_rank(arguments, environment):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local-rank", "--local_rank", type=int, default=int(environment.get("LOCAL_RANK", 0)))
    return parser.parse_args(arguments).local_rank


def local_rank_of(arguments, environment, *names):
    """The local rank of a program that knows only these spellings of the option, maybe none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    if names:
        parser.add_argument(*names, dest="local_rank", type=int)
    parser.set_defaults(local_rank=int(environment.get("LOCAL_RANK", 0)))
    return parser.parse_args(arguments).local_rank


# launcher -> what rank 1 of a node is given: arguments, environment, its local rank
LAUNCHERS = {
    "torchrun": (["--epochs", "3"], {"LOCAL_RANK": "1"}, 1),
    "torch.distributed.launch before 2.0": (["--local_rank=1", "--epochs", "3"], {"LOCAL_RANK": "1"}, 1),
    "torch.distributed.launch since 2.0": (["--local-rank=1", "--epochs", "3"], {"LOCAL_RANK": "1"}, 1),
    "plain python": (["--epochs", "3"], {}, 0),
}


@exercise(
    solution=local_rank,
    hint="add_argument takes several spellings: add_argument(\"--one\", \"--other\", ...). Its default may come from "
    "the environment: environment.get(\"LOCAL_RANK\", 0) is text where the launcher has set it.",
    mistakes={
        "only the underscore": lambda arguments, environment: local_rank_of(arguments, environment, "--local_rank"),
        "only the dash": lambda arguments, environment: local_rank_of(arguments, environment, "--local-rank"),
        "only the argument":
            lambda arguments, environment: local_rank_of(arguments, {}, "--local-rank", "--local_rank"),
        "only the environment": local_rank_of,
    },
)
def device(attempt):
    """Your script finds its local rank under torchrun, under torch.distributed.launch of any version, and under plain
    python, and it still takes options of its own."""
    failed = {}
    for launcher, (arguments, environment, expected) in LAUNCHERS.items():
        try:
            got = without_exit(attempt, list(arguments), dict(environment))
        except Wrong as wrong:
            failed[launcher] = f"the program was ended: {wrong}"
            continue
        if got != expected:
            raise Wrong(f"Under {launcher} you gave {got!r}, and it is {expected}. It was told {arguments} and the "
                        f"environment {environment}."
                        + (" torchrun passes no argument: it sets LOCAL_RANK." if launcher == "torchrun" else ""))
    if failed:
        raise Wrong(f"It works under {', '.join(sorted(set(LAUNCHERS) - set(failed))) or 'no launcher'}. But "
                    + " ".join(f"Under {launcher}: {said}" for launcher, said in failed.items()))


# Exercise 2: the command
TASK = ("torchrun --nnodes=2 --node-rank=1 --master-addr=node-a --master-port=29500 --nproc-per-node=4 "
        "main.py --epochs 3")


@exercise(
    solution=TASK,
    hint="Both nodes get the same command but for one number. torchrun's options come first, then main.py, then "
    "main.py's own options. A rendezvous without node ranks is right, too: --rdzv-backend=c10d, --rdzv-endpoint and "
    "--rdzv-id.",
    mistakes={
        "the first node's command": TASK.replace("--node-rank=1", "--node-rank=0"),
        "the world size as ranks per node": TASK.replace("--nproc-per-node=4", "--nproc-per-node=8"),
        "torchrun's options after the script": "torchrun --nproc-per-node=4 main.py --epochs 3 --nnodes=2 "
                                               "--node-rank=1 --master-addr=node-a --master-port=29500",
        "--standalone": TASK.replace("--node-rank", "--standalone --node-rank"),
        "no --nnodes": TASK.replace("--nnodes=2 ", ""),
        "this node taken for the master": TASK.replace("node-a", "node-b"),
        "the script's options before it": TASK.replace(" main.py --epochs 3", " --epochs 3 main.py"),
    },
)
def command(attempt):
    """torchrun's own parser reads it as the second of two nodes, four ranks on each, meeting at node-a:29500; and
    main.py gets its options."""
    found = parsed(attempt() if callable(attempt) else attempt)
    if not found.by_torchrun:
        raise Wrong("That is one process. Begin with torchrun.")
    if any(word.split("=")[0].replace("_", "-") in ("--nnodes", "--node-rank", "--master-addr", "--rdzv-endpoint",
                                                   "--nproc-per-node") for word in found.training_script_args):
        raise Wrong("What stands after main.py goes to main.py. torchrun's own options must come before it.")
    if found.training_script_args not in (["--epochs", "3"], ["--epochs=3"]):
        raise Wrong(f"main.py would get {found.training_script_args}, not --epochs 3.")
    if found.nnodes != "2":
        raise Wrong(f"torchrun would start a job of {found.nnodes} node(s), and not wait for the other: --nnodes=2.")
    if found.standalone:
        raise Wrong("--standalone is for a job on one node: this one would not look for the other.")
    if found.nproc_per_node == "8":
        raise Wrong("Eight is the world size. --nproc-per-node counts the ranks of one node.")
    if found.nproc_per_node not in ("4", "gpu", "auto"):  # the nodes have four GPUs
        raise Wrong(f"torchrun would start {found.nproc_per_node} rank(s) on this node: --nproc-per-node=4.")
    if found.rdzv_backend == "c10d":
        if found.rdzv_endpoint != "node-a:29500" or found.rdzv_id == "none":
            raise Wrong("With --rdzv-backend=c10d both nodes need the same --rdzv-endpoint=node-a:29500 and the same "
                        f"--rdzv-id. Yours are {found.rdzv_endpoint!r} and {found.rdzv_id!r}.")
        return
    if found.node_rank != 1:
        raise Wrong(f"--node-rank is {found.node_rank}. That is the first node's: both would open the store and call "
                    "their ranks 0 to 3. This is the second one.")
    place = f"{found.master_addr}:{found.master_port or 29500}"
    if (found.rdzv_endpoint or place) != "node-a:29500":
        raise Wrong(f"This node would look for the others at {found.rdzv_endpoint or place}. All meet at the first "
                    "node, node-a, port 29500.")


# Exercise 3: restarts
def processes(ranks, max_restarts):
    return ranks * (1 + max_restarts)


@exercise(
    solution=processes,
    hint="Look at the picture of the restart above: which ranks were started again when rank 1 failed?",
    mistakes={
        "You restart the failed rank alone. torchrun restarts all: the others were in the middle of an all-reduce with "
        "it.": lambda ranks, max_restarts: ranks + max_restarts,
        "The first start is not a restart, but its processes count, too.":
            lambda ranks, max_restarts: ranks * max_restarts,
        "The first attempt fails, and then there are {max_restarts} more.": lambda ranks, max_restarts: ranks,
    },
)
def restarts(attempt):
    """A restart is one of all ranks: those that were well are ended and started again. So every rank loses what it
    had not saved."""
    for miss in misses(restarts, attempt, [(4, 2), (2, 1), (3, 0), (8, 3)], read=exactly):
        miss.tell("With {ranks} ranks and --max-restarts={max_restarts} you gave {got}; torchrun starts {right}.")
