#!/usr/bin/env bash
# Records the runs of this folder again, where nothing else runs: about 2 minutes on two cores.
#
#   results/recorded/two-nodes-namespaces/record.sh
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$(cd -- "$(dirname -- "$0")" > /dev/null && pwd)
cd -- "$here/../../.." > /dev/null

export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1 # one thread a rank, so that two ranks have a core each
out=build/two-nodes-namespaces
rm -rf "$out" && mkdir -p "$out"
python -c 'import data; data.get_dataset("cifar10")' # the hosts see no network
train='main.py --dataset cifar10 --samples 20000 --test-samples 2000 --device cpu'
c10d='--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$MASTER:29400'
quick='--rdzv-conf=last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3' # see a lost node soon

prefix=$(python -c 'import sys; print(sys.base_prefix)')
lab() { # prints the command, runs it, and leaves out where the repository and python are
  printf '$ scripts/cluster/lab_cluster.py'; printf " %s" "${@:1:$#-1}"; printf " '%s'\n" "${*: -1}"
  python scripts/cluster/lab_cluster.py "$@" 2>&1 | sed -u "s#$PWD/##g; s#$prefix#PYTHON#g"
}

lab --nodes 1 -- "torchrun --nproc-per-node=1 $train --epochs 3 --log-file $out/one-node-1-rank.jsonl"
lab --nodes 1 -- "torchrun --nproc-per-node=2 $train --epochs 3 --log-file $out/one-node-2-ranks.jsonl"
lab --nodes 2 -- "torchrun --nnodes=2 --node-rank=\$NODE --nproc-per-node=1 --master-addr=\$MASTER --master-port=29500 \
$train --epochs 3 --log-file $out/two-nodes-1-rank-each.jsonl" | tee "$out/console-static.out"
lab --nodes 2 --kill 1@30 -- "torchrun --nnodes=1:2 --nproc-per-node=1 --max-restarts=3 $c10d $quick \
$train --epochs 20 --timeout 60 --global-batch-size 128 --checkpoint $out/kept" | tee "$out/console-node-lost.out"

before=$(sed '/kill node1/q' "$out/console-node-lost.out" | grep -c 'Epoch:' || true)
if [ "$before" = 0 ] || [ "$before" = 20 ]; then
  echo "node1 was killed after $before of 20 epochs, which shows nothing: is the machine busy? Nothing was replaced." >&2
  exit 1
fi
rm "$out"/kept*
mv "$out"/* "$here" # only complete recordings come here
