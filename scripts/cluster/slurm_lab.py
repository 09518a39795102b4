#!/usr/bin/env python3
"""A real Slurm on this one machine, for as long as a command runs: for those who have no cluster, and for the tests.

    scripts/cluster/slurm_lab.py -- sinfo
    scripts/cluster/slurm_lab.py --nodes 2 -- sbatch --wait --gpus-per-node=0 --ntasks-per-node=1 --cpus-per-task=1
        scripts/cluster/ranks.sbatch --device cpu --dataset synthetic --samples 640 --epochs 1
    scripts/cluster/slurm_lab.py --nodes 2 -- bash

COMMAND runs on node0, the login node, where slurmctld runs too. Jobs run on node1, node2, ...: hosts as lab_cluster.py
makes them, each with an address of its own and a slurmd. They share the machine's files, cores and GPUs: Slurm is told,
and believes, that each node has --cpus and --gpus. Jobs get CUDA_VISIBLE_DEVICES as on a cluster, but torch finds only
what this machine has: give main.py `--device cpu`.

`sbatch --wait` looks after 2, 10, 42, 74, ... seconds. This returns as soon as the job has ended:
`srun --quiet --dependency=afterok:$(sbatch --parsable FILE) true`; it fails if the job failed.

All files are in one temporary folder, $SLURM_LAB, with the daemons' logs (*.log). It ends with COMMAND, and so do the
daemons and all jobs, also when this program is killed (`kill -9` leaves the folder). Labs side by side do not see each
other. From the hosts nothing outside can be reached: have the data ready (scripts/setup), or use --dataset synthetic.

Exit status: COMMAND's; 2 for bad input, and where no lab can be made: course/slurm.py says what it needs.
"""

import sys

from course import rank_program
from course.slurm import Slurm

COUNTS = {"nodes": (1, 2, "compute nodes"), "cpus": (1, 64, "CPU cores that each node claims to have"),
          "gpus": (0, 8, "GPUs that each node claims to have")}  # the least, the default, what it is


def main():
    parser = rank_program.parser(__doc__)
    for name, (_, default, what) in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="a program and its options, for the login node")
    args = parser.parse_args()
    for name, (least, _, _) in COUNTS.items():
        if not least <= getattr(args, name) <= 99:
            parser.error(f"--{name} {getattr(args, name)}: it must be {least} to 99")
    with rank_program.stoppable(parser), Slurm(args.nodes, args.cpus, args.gpus) as slurm:
        status = slurm.start(args.command).wait()
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
