#!/usr/bin/env bash
# Records the runs of this folder again: about 20 minutes on two free cores. Start it again to go on where it stopped.
#
#   results/recorded/large-batch/record.sh
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$(cd -- "$(dirname -- "$0")" > /dev/null && pwd)
cd -- "$here/../../.." > /dev/null

export PATH="$PWD/.venv/bin:$PATH"
out=build/large-batch
options="--dataset cifar10 --device cpu --samples 10000 --test-samples 3000 --epochs 5 --optimizer sgd"
python -c 'import data; data.get_dataset("cifar10")' # before the ranks ask for it

sweep() { # status 1: a run failed. A loss that is no longer a number is a result here.
  python scripts/measure/sweep.py --threads 1 --seeds "$seed" --run-timeout 500 "$@" -- $options ${warmup-} || [ $? = 1 ]
}

for seed in 0 1 2; do # a seed at a time: what there is after an interruption is whole
  # One process computes what 1, 2, 4 and 8 ranks with a batch of 64 each compute (the lesson proves it live).
  one="--world-sizes 1 --out $out/one-process"
  sweep $one --batch-sizes 64 512 --lrs 0.005 0.01 0.02 0.04 0.08 0.16
  sweep $one --batch-sizes 512 --lrs 0.0282842712 # 0.01 * sqrt(8); 0.01 * sqrt(2) follows
  sweep $one --batch-sizes 128 --lrs 0.01 0.0141421356 0.02 0.04 0.08
  sweep $one --batch-sizes 256 --lrs 0.01 0.02 0.04 0.08
  # The warm-up rises to --lr times the number of ranks, so it needs the ranks.
  warmup="--lr-scaling linear --warmup-epochs 1" sweep --world-sizes 8 --lrs 0.01 0.02 --out $out/warm-up
done

for folder in one-process warm-up; do # the logs alone, when all is done
  mkdir -p "$here/$folder" && cp "$out/$folder"/*.jsonl "$here/$folder"
done
