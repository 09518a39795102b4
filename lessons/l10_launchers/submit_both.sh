#!/bin/sh
# Submits one training to Slurm in both ways, waits for both jobs, and prints what they said. Its options are main.py's.
#
#   scripts/cluster/slurm_lab.py --nodes 2 -- lessons/l10_launchers/submit_both.sh --dataset synthetic --epochs 1

set -eu
for way in ranks torchrun; do
  out="results/live/10_slurm_$way"
  sbatch --gpus-per-node=0 --ntasks-per-node=1 --cpus-per-task=1 --output="$out.txt" \
    "scripts/cluster/$way.sbatch" --log-file "$out.jsonl" --save-model "$out.pt" "$@"
done
while squeue --noheader | grep -q .; do sleep 0.5; done
cat results/live/10_slurm_ranks.txt results/live/10_slurm_torchrun.txt
