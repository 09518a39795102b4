"""Stands in for torchrun, python, srun, scontrol and hostname while a learner's launch file is rehearsed: it notes how
ranks would be started, and starts none. `check.py` puts these names on the PATH of the file."""

import argparse
import json
import os
import subprocess
import sys
import uuid

# Options of sbatch and srun that take a value, as one word or as two. The first three say what is started.
VALUES = [["--nodes", "-N"], ["--ntasks", "-n"], ["--ntasks-per-node"], ["--cpus-per-task", "-c"], ["--gpus", "-G"],
          ["--gpus-per-task"], ["--gpus-per-node"], ["--gres"], ["--cpu-bind"], ["--gpu-bind"], ["--mpi"], ["--export"],
          ["--output", "-o"], ["--error", "-e"], ["--job-name", "-J"], ["--time", "-t"], ["--partition", "-p"],
          ["--account", "-A"], ["--nodelist", "-w"], ["--signal"], ["--chdir", "-D"], ["--mem"], ["--open-mode"],
          ["--qos", "-q"], ["--constraint", "-C"], ["--exclude", "-x"], ["--distribution", "-m"], ["--wait", "-W"],
          ["--input", "-i"], ["--relative", "-r"], ["--mem-per-cpu"], ["--mem-per-gpu"], ["--mem-bind"], ["--hint"],
          ["--ntasks-per-gpu"], ["--ntasks-per-socket"], ["--threads-per-core"], ["--reservation"], ["--jobid"]]


def read(words, command=True):
    """The options of sbatch or srun, and `command`, the words behind them, where there is one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in VALUES:
        parser.add_argument(*names)
    if command:
        parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_known_args(words)[0]
    least, _, most = (options.nodes or "").partition("-")
    if least == most:
        options.nodes = least
    return options


def tasks(options, nodes, total):
    """For each task its node, from 0: after the options, else as many tasks as the job has, `total`."""
    nodes = int((options.nodes or nodes).partition("-")[0])
    total = int(options.ntasks or (nodes * int(options.ntasks_per_node) if options.ntasks_per_node else total))
    return [task * nodes // total for task in range(total)]


def main():
    name, *words = sys.argv[1:]
    env = os.environ
    if name == "srun":
        options = read(words)
        for task, node in enumerate(tasks(options, env["SLURM_JOB_NUM_NODES"], env["TASKS"])):
            host = f"node{node + 1}"
            facts = {"SLURM_STEP_ID": 0, "SLURM_PROCID": task, "SLURM_NODEID": node, "SLURMD_NODENAME": host,
                     "HOST_NAME": host}
            subprocess.run(options.command, env={**env, **{name: str(value) for name, value in facts.items()}})
    elif name == "scontrol":
        print("node1\nnode2\n", end="")  # in one piece: `head` may close the pipe after the first
    elif name == "hostname":
        print(env["HOST_NAME"])
    else:
        if name != "torchrun" and words[:1] == ["-u"]:
            del words[0]
        if words[:2] == ["-m", "torch.distributed.run"]:
            name, words = "torchrun", words[2:]
        kept = {key: env.get(key) for key in ("HOST_NAME", "SLURM_PROCID", "SLURM_STEP_ID")}
        with open(f"{env['CALLS']}/{uuid.uuid4().hex}", "w") as file:
            json.dump({"program": name, "words": words, **kept}, file)


if __name__ == "__main__":
    main()
