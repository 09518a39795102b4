#!/bin/sh
# Submits a job file, with its options, waits for the job's end, and prints what it said.
#
#   scripts/cluster/slurm_lab.py --nodes 2 -- lessons/l10_launchers/submit.sh mine/job.sbatch --epochs 1

set -eu
job=$(sbatch --parsable --output=results/live/10_job.txt "$@")
srun --quiet --dependency=afterany:"$job" true
cat results/live/10_job.txt
