#!/usr/bin/env bash
# Records the runs of this folder again, on a machine with two cores: about 3 minutes.
#
#   results/recorded/went-wrong/record.sh
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$(cd -- "$(dirname -- "$0")" > /dev/null && pwd)
cd -- "$here/../../.." > /dev/null

export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD" OMP_NUM_THREADS=1
out=$(mktemp -d)
trap 'rm -r -- "$out"' EXIT
options="--dataset cifar10 --device cpu --samples 6400 --test-samples 1000 --epochs 4"
two="timeout 300 torchrun --nproc_per_node=2"
python -c 'import data; data.get_dataset("cifar10")' # before the ranks ask for it

$two main.py $options --log-file "$out/sound.jsonl"
OMP_NUM_THREADS=8 $two main.py $options --log-file "$out/a.jsonl"
$two "$here/image_files.py" "$out/images" $options --log-file "$out/b.jsonl"

# The ranks without torchrun, so that one alone can be stopped and woken, as a container's quota does it: 10 of 40 ms.
export MASTER_ADDR=localhost MASTER_PORT=29577 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
RANK=1 LOCAL_RANK=1 timeout 300 python main.py $options & # timeout passes SIGSTOP to nobody: stop its child
sleep 1
quota='import os, signal, sys, time
while os.path.exists(f"/proc/{(rank := int(sys.argv[1]))}/fd"):
    for number, seconds in (signal.SIGSTOP, 0.03), (signal.SIGCONT, 0.01):
        os.kill(rank, number)
        time.sleep(seconds)'
timeout 300 python -c "$quota" "$(pgrep -P $!)" 2> "$out/quota.txt" & # ends with the rank
RANK=0 LOCAL_RANK=0 timeout 300 python main.py $options --log-file "$out/c.jsonl"
wait
cp -- "$out"/*.jsonl "$here"
