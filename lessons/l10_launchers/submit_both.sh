#!/bin/sh
# Submits one training to Slurm in both ways, waits for both jobs, and prints what they said. The first argument is the
# learner's file, the others are options of main.py.
#
#   scripts/cluster/slurm_lab.py --nodes 2 -- lessons/l10_launchers/submit_both.sh FILE --dataset synthetic --epochs 1

set -eu
job="$1"
shift
sbatch --gpus-per-node=0 --ntasks-per-node=2 --cpus-per-task=1 --output=results/live/10_slurm_ranks.txt \
  scripts/cluster/ranks.sbatch --log-file results/live/10_slurm_ranks.jsonl \
  --save-model results/live/10_slurm_ranks.pt "$@"
sbatch --output=results/live/10_slurm_job.txt "$job" --save-model results/live/10_slurm_job.pt "$@"
while squeue --noheader | grep -q .; do sleep 0.5; done
cat results/live/10_slurm_ranks.txt results/live/10_slurm_job.txt
