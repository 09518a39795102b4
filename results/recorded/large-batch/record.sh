#!/usr/bin/env bash
# Records the runs of this folder again: about 25 minutes on two free cores. Start it again to go on where it stopped.
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

export OMP_NUM_THREADS=1

record() { # NAME COMMAND...: one run, unless it is recorded. A run whose loss is no longer a number fails: a result, too.
  local log=$out/$1.jsonl
  shift
  grep -qs '"status": "completed"' "$log" || timeout 500 "$@" --log-file "$log" < /dev/null || [ $? = 1 ]
}

for seed in 0 1 2; do # a seed at a time: after an interruption, whole seeds remain
  # One process computes what 1, 2, 4 and 8 ranks with a batch of 64 each compute (the lesson proves it live).
  # 0.0141421356 and 0.0282842712 are the square-root rule's rates of 0.01 for 64 images.
  while read -r batch rates; do
    for lr in $rates; do
      record "one-process/lenet-single-batch$batch-lr$(printf %g "$lr")-seed$seed" \
        python main.py $options --batch-size "$batch" --lr "$lr" --seed "$seed"
    done
  done << 'RATES'
64 0.005 0.01 0.02 0.04 0.08 0.16
128 0.01 0.0141421356 0.02 0.04 0.08
256 0.01 0.02 0.04 0.08
512 0.005 0.01 0.02 0.0282842712 0.04 0.08 0.16
RATES
  while read -r batch rates; do # with Adam; 0.00282842712 is the square-root rule's rate of 0.001 for 64 images
    for lr in $rates; do
      record "adam/lenet-single-batch$batch-lr$(printf %g "$lr")-seed$seed" \
        python main.py $options --optimizer adam --batch-size "$batch" --lr "$lr" --seed "$seed"
    done
  done << 'RATES'
64 0.0005 0.001 0.002 0.004
512 0.001 0.002 0.00282842712 0.004 0.008 0.016
RATES
  # The warm-up rises to --lr times the number of ranks, so it needs the ranks.
  for lr in 0.01 0.02; do
    record "warm-up/lenet-ddp8-batch64-lr$lr-seed$seed" \
      torchrun --nproc_per_node=8 main.py $options --lr-scaling linear --warmup-epochs 1 --lr "$lr" --seed "$seed"
  done
done

for folder in one-process adam warm-up; do # the logs alone, when all is done
  mkdir -p "$here/$folder" && cp "$out/$folder"/*.jsonl "$here/$folder"
done
