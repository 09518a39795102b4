# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         epochs: 3
#         moment: 1.5
#         samples: 2000
#         several_nodes: false
#       seconds: 55
#     seconds: 115
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Fault tolerance
#
# One of many ranks dies, a node is lost, a cable is cut. What becomes of the training, and how much work is lost?

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed.constants
from IPython.display import Markdown, display
from matplotlib.ticker import MaxNLocator

import options as main_options
import data
from course import plots, processes, runs
from scripts.lessons import sharded_checkpoint
from course.checks import lesson_11 as check
from course.hosts import Cluster

# %% tags=["parameters"]
samples = 6000  # training images
epochs = 5
victim = 1  # the rank that you kill …
moment = 2.5  # … and when: in the middle of epoch 2. Epochs count from 0; 1 is the first that can be hit
several_nodes = True  # two nodes, live where this machine can; False shows a recorded run

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
made_up = ", SYNTHETIC DATA" if dataset == "synthetic" else ""
live = Path("results/live")
live.mkdir(parents=True, exist_ok=True)
for old in live.glob("11_*"):
    shutil.rmtree(old) if old.is_dir() else old.unlink()


def records(log):
    """The records of a run log, as they stand in the file."""
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


# %% [markdown]
# ## What torchrun does
#
# `torchrun` watches its ranks. When one ends with an error, it ends the others, too: they are in the middle of an all-reduce with it. With
# `--max-restarts=1` it then starts **all** of them again, once (lesson [10](10_launchers.ipynb) draws that).
#
# Who failed first, and why? `main.py` has `@record` on its main function. It writes the exception of a rank into a file, where `torchrun` looks for it.
#
# **Predict.** Two ranks with an absurd learning rate, so the loss becomes `nan` (not a number), and `main.py` stops with an error. One restart is allowed. Does the second attempt go well? How many
# ranks leave an error file, over both attempts?

# %%
my_second_attempt, my_files = "goes well", 1

# %%
# !python scripts/cluster/why_it_failed.py --expect-failure --within 120 -- torchrun --nproc_per_node=2 --max-restarts=1 --log-dir=results/live/11_errors \
#     main.py --device cpu --samples 500 --test-samples 100 --epochs 1 --lr 1e30

# %%
job = max((live / "11_errors").iterdir(), key=lambda folder: folder.stat().st_mtime)  # torchrun makes a folder for each job
errors = []
for rank in sorted(job.glob("attempt_*/*")):
    file = rank / "error.json"
    error = json.loads(file.read_text())["message"] if file.exists() else {"message": "(no error file: it was ended before)"}
    errors.append({"restart count": rank.parent.name.removeprefix("attempt_"), "rank": rank.name, "error.json says": error["message"]})
    if file.exists():
        traceback = error["extraInfo"]["py_callstack"]
lesson.table(errors)
print(textwrap.indent(processes.without_folders(traceback), "  "))
left = sum("no error file" not in row["error.json says"] for row in errors)
Markdown(f"You said: the second attempt {my_second_attempt}, {my_files} file(s). There were **{len(errors)}** processes and **{left}** error files, and both attempts "
         "failed in the same way. **A restart cures an accident, and repeats a mistake.**")

# %% [markdown]
# - Each process finds its attempt in `TORCHELASTIC_RESTART_COUNT`, and the place for its error file in `TORCHELASTIC_ERROR_FILE`.
# - The earliest of the files is the *root cause* that `torchrun` prints in the end. Without `@record` there is no file, and it prints
#   *"To enable traceback see …"* instead.
# - The new processes begin at the first line of your script. What was not saved is lost.
#
# ## Kill a rank
#
# So save. `main.py --checkpoint FILE --checkpoint-every 20` writes the weights, the optimizer's state, the place in the epoch, and the random states every 20 steps and after
# each epoch. When it starts and finds the file, it goes on from there.
#
# First, a training that nobody disturbs:

# %%
every = 20
training = f"main.py --device cpu --samples {samples} --test-samples 1000 --epochs {epochs} --global-batch-size 64"
# !torchrun --nproc_per_node=2 {training} --save-model results/live/11_whole.pt --log-file results/live/11_whole.jsonl

# %% [markdown]
# And now you kill one: `victim` and `moment` stand at the top of this notebook. `scripts/cluster/kill_rank.py` looks into the run's log, and at the moment you chose it sends SIGKILL, which no
# program can catch. Linux does the same to a process when the machine has no memory left.
#
# **Predict.** How many seconds longer will it take? How many steps are made twice? How far are its weights from those of the undisturbed run?

# %%
my_seconds, my_steps, my_difference = 1, 100, 0.01

# %%
# !python scripts/cluster/kill_rank.py --kill {victim}@{moment} --within 150 --out results/live/11_kill.json -- torchrun --nproc_per_node=2 --max-restarts=1 \
#     {training} --checkpoint results/live/11_kept.pt --checkpoint-every {every} --save-model results/live/11_killed.pt --log-file results/live/11_killed.jsonl

# %%
found = json.loads((live / "11_kill.json").read_text())
killed_at = found["kills"][0]["time"]
whole, killed = runs.read_run(live / "11_whole.jsonl", "undisturbed"), runs.read_run(live / "11_killed.jsonl", "killed")
log = records(live / "11_killed.jsonl")
restart = next(record for record in log if record["kind"] == "restart")
began = {"undisturbed": records(live / "11_whole.jsonl")[0]["time"], "killed": log[0]["time"]}

fig, (left_ax, right_ax) = plt.subplots(1, 2, figsize=(18, 7), sharey=True)
looks = {"undisturbed": {"color": plots.COLOURS[0], "linewidth": 8, "alpha": 0.35}, "killed": {"color": plots.COLOURS[1], "marker": "o"}}
for name, run in (("undisturbed", whole), ("killed", killed)):
    left_ax.plot(run["epoch"] + 1, run["loss"], **looks[name])
    right_ax.plot(run["time"] - began[name], run["loss"], **looks[name])
    at, place = (0, (14, 0)) if name == "killed" else (-1, (10, -6))
    right_ax.annotate(name, (run["time"].iloc[at] - began[name], run["loss"].iloc[at]), place, textcoords="offset points", color=looks[name]["color"],
                      fontweight="bold", va="center")
left_ax.axvline(moment, color="black", linestyle=":")
left_ax.text(moment, 1, f" rank {victim} is killed", transform=left_ax.get_xaxis_transform(), va="top")
left_ax.annotate("undisturbed (wide), killed (dots)", (0.97, 0.8), xycoords="axes fraction", ha="right")
right_ax.axvspan(killed_at - began["killed"], restart["time"] - began["killed"], color="#E3E3E3")
right_ax.text(killed_at - began["killed"], 0.98, " killed, and\n started again", transform=right_ax.get_xaxis_transform(), va="top")
left_ax.set(xlabel="epochs done", ylabel="loss (cross-entropy)", title=f"By epoch: one curve{made_up}")
left_ax.xaxis.set_major_locator(MaxNLocator(integer=True))
right_ax.set(xlabel="seconds since the first step", title="By time: a gap")
plt.show()

# %%
a, b = (torch.load(live / f"11_{name}.pt", weights_only=True) for name in ("whole", "killed"))
farthest = max((a[name] - b[name]).abs().max().item() for name in a)
assert all(torch.equal(a[name], b[name]) for name in a), farthest
assert list(whole["loss"]) == list(killed["loss"]) and killed["restarts"][0] == 1
Markdown(f"You said a difference of {my_difference:g}. The largest is **{farthest:g}**: all {sum(value.numel() for value in a.values()):,} weights are equal, **bit for bit**, "
         "and so are the losses of all epochs. The run was killed, and nothing in its result shows it.")

# %% [markdown]
# This does not come by itself. The checkpoint must hold *all* that the next step depends on: optimizer, learning rate schedule, the place in the shuffled order, the random states.
# `main.py` even repeats how DDP orders its buckets (`settle_buckets`), because sums in another order have other last bits.
# It holds for the same number of ranks. On a GPU it also needs [deterministic kernels](https://docs.pytorch.org/docs/stable/notes/randomness.html).
#
# What did the kill cost?

# %%
steps = math.ceil(samples / 64)
waiting = re.search(r"waited in epoch (\d+), step (\d+)", "\n".join(found["said"]))  # the survivor's last words
reached = int(waiting[1]) * steps + int(waiting[2]) - 1 if waiting else None
again = reached - restart["epoch"] * steps - restart["step"] if waiting else math.nan
failed = next((record["time"] for record in log if record["kind"] == "end" and record["status"] == "failed"), None)
a_step = killed["seconds"].median() / steps
parts = {f"{again} steps again": again * a_step}
if failed:
    parts = {"the others notice": max(0.0, failed - killed_at), "all are ended, and started again": restart["time"] - failed, **parts}
else:  # the victim was rank 0, which writes the log
    parts = {"noticed, ended, started again": restart["time"] - killed_at, **parts}

fig, ax = plt.subplots(figsize=(14, 4.6))
start = 0
for y, seconds in enumerate(parts.values()):
    ax.barh(y, seconds, left=start, color=plots.COLOURS[y], height=0.6)
    start += seconds
    ax.text(start, y, f"  {seconds:.2f} s", va="center", fontweight="bold")
ax.set_yticks(range(len(parts)), parts)
ax.invert_yaxis()
ax.margins(x=0.15)
ax.grid(axis="y", visible=False)
ax.set(xlabel="seconds after the kill", title="What one kill cost")
plt.show()
longer = (killed["time"].iloc[-1] - began["killed"]) - (whole["time"].iloc[-1] - began["undisturbed"])
Markdown(f"From the first step to the last epoch it took **{longer:.1f} s longer** than the undisturbed run (you said {my_seconds}), and **{again} steps** were made twice (you said {my_steps}): "
         f"the checkpoint was of epoch {restart['epoch']}, step {restart['step']}. The largest part: *{max(parts, key=parts.get)}*. To start again, each process imports PyTorch anew.")

# %% [markdown]
# (Two seconds of that are `main.py`'s own: the rank that is left waits so long to learn who else waits, before it says so and ends.)
#
# ## How often to save
#
# Save seldom, and a failure costs much work. Save often, and you do nothing but write. What does one write take here? The log says how many seconds of each
# epoch went into checkpoints.

# %%
writes = [(epoch + 1) * steps // every - epoch * steps // every for epoch in killed["epoch"]]  # within the epochs
write_seconds = killed["checkpoint_seconds"].sum() / sum(writes)
size = (live / "11_kept.pt").stat().st_size
Markdown(f"{sum(writes)} writes of {size / 1e6:.2f} MB took **{1000 * write_seconds:.1f} ms** each. A step took {1000 * a_step:.1f} ms.")

# %% [markdown]
# Call the seconds of a write δ, those between two writes τ, and M the mean time between two failures. Writing costs the share δ/τ of all time. A failure
# loses half an interval on average: the share τ/2M. The sum is least at
#
# $$\tau = \sqrt{2\,\delta\,M}$$
#
# ([Young 1974](https://doi.org/10.1145/361147.361115), CACM 17(9)). [Daly 2006](https://doi.org/10.1016/j.future.2004.11.016), FGCS 22(3), has further terms, for writes that are not short beside M.
#
# **Predict.** Our write, and a failure every day: how many minutes between two checkpoints?

# %%
hours_between_failures = 24.0  # M. Yours?
my_minutes = 60

# %%
M = 3600 * hours_between_failures
young = math.sqrt(2 * write_seconds * M)
ratio = write_seconds / (2 * M)
daly = math.sqrt(2 * write_seconds * M) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_seconds  # for write_seconds < 2 M
tau = np.geomspace(young / 100, min(young * 100, 2 * M), 200)
writing, losing = write_seconds / tau, tau / (2 * M)

# The same by dice: failures at random moments. Of the time until each, only whole intervals are kept.
life = np.random.default_rng(0).exponential(M, 5000)
diced = [(one, 1 - (life // (one + write_seconds) * one).sum() / life.sum()) for one in tau[::15]]

fig, ax = plt.subplots(figsize=(14, 7.5))
for share, name, colour, at in ((writing, "writing", plots.COLOURS[0], 150), (losing, "lost work", plots.COLOURS[1], 50)):
    ax.plot(tau, 100 * share, plots.LINES["predicted"], color=colour)
    ax.annotate(name, (tau[at], 100 * share[at]), (10 if at > 100 else -10, 8), textcoords="offset points", color=colour, fontweight="bold",
                ha="left" if at > 100 else "right")
ax.plot(tau, 100 * (writing + losing), plots.LINES["predicted"], color=plots.COLOURS[6])
ax.plot(*zip(*[(one, 100 * share) for one, share in diced], strict=True), "D", markerfacecolor="white", color=plots.COLOURS[2])
ax.plot(young, 100 * (write_seconds / young + young / (2 * M)), "o", color=plots.COLOURS[6], markersize=16)
ax.annotate(f"best: every {young:.0f} s", (young, 100 * (write_seconds / young + young / (2 * M))), (0, 26), textcoords="offset points", ha="center", fontweight="bold")
ax.annotate("both (dots), and 5000 random failures (diamonds)", (0.5, 0.97), xycoords="axes fraction", ha="center", va="top")
ax.set(xscale="log", yscale="log", xlabel="seconds between two checkpoints", ylabel="time that is lost (%)")
ax.set_title(f"Predicted: δ = {1000 * write_seconds:.0f} ms as measured, a failure every {hours_between_failures:g} h")
plt.show()
Markdown(f"Young: every **{young:.1f} s**, Daly: every {daly:.1f} s (you said {60 * my_minutes} s). As an option: `--checkpoint-every {max(1, round(young / a_step))}`. "
         f"It costs {write_seconds / young + young / (2 * M):.2%} of the time.")

# %% [markdown]
# The valley is wide: an interval three times too long, or too short, loses (3 + ⅓)/2 ≈ 1.7 times as much as the best. Far outside it becomes dear. The
# formula does not count the restart, which you have measured above: that comes once a failure, however often you save.
#
# Large jobs fail more often: any node that fails stops the job, so its M is that of one node divided by the number of nodes. For the write above:

# %%
lesson.table([{"nodes": f"{nodes:,}", "M": f"{hours_between_failures / nodes:.3g} h", "best interval": f"{math.sqrt(2 * write_seconds * M / nodes):.1f} s",
       "time that is lost": f"{math.sqrt(2 * write_seconds * nodes / M):.2%}"} for nodes in (1, 8, 64, 1024)])

# %% [markdown]
# ## A node is lost, and comes back
#
# Two nodes, out of network namespaces of this machine (lesson [10](10_launchers.ipynb)). The job is *elastic*: `--nnodes=1:2`, one node is enough, two are welcome.
# `scripts/cluster/lose_node.py` kills node1 while both train, and starts it again a little later. In the end it sends SIGTERM, as a cluster does when it wants its machines back.
# Beside it runs a second pair of nodes, for the next section.
#
# **Predict.** Both nodes together take 64 images a step. How many does node0 take when it is alone? And does the run begin again at epoch 0?

# %%
my_images, my_first_epoch = 32, 0

# %%
why_not = None if several_nodes else "several_nodes is False"
why_not = why_not or Cluster.available()
recorded = Path("results/recorded/elastic-two-nodes")
options = f"--dataset {dataset} --device cpu --samples 3000 --test-samples 500 --global-batch-size 64".split()
if why_not:
    print(f"RECORDED on another machine ({recorded}), because {why_not}\n")
    lost_and_back, cut = recorded / "rejoin", recorded / "cut"
else:
    lost_and_back, cut = live / "11_rejoin", live / "11_cut"
    labs = [subprocess.Popen([sys.executable, "scripts/cluster/lose_node.py", what, "--out", folder, "--epochs", str(parts), "--", *options, *more],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for what, folder, parts, more in (("rejoin", lost_and_back, 2, []), ("cut", cut, 1, ["--timeout", "5"]))]
    for lab in labs:  # each of its waits is bounded
        print(lab.communicate(timeout=400)[0])
        assert lab.returncode == 0
for line in (lost_and_back / "node0.out").read_text().splitlines():
    if re.match(r"Epoch: |Going on|SIGTERM|.*rank\(s\) (x batch|0 waited)", line):
        print(f"node0: {line[:140]}")

# %%
elastic, moments = records(lost_and_back / "run.jsonl"), json.loads((lost_and_back / "moments.json").read_text())
zero = elastic[0]["time"]
pieces = []  # (nodes, [(seconds, loss), ...]) between two restarts
for record in elastic:
    if record["kind"] in ("run", "restart"):
        pieces.append((record["world_size"], []))
    elif record["kind"] == "epoch":
        pieces[-1][1].append((record["time"] - zero, record["loss"]))
fig, ax = plt.subplots(figsize=(15, 7.5))
look = plots.LINES["recorded" if why_not else "live"]
before = []
for nodes, points in pieces:
    colour = plots.COLOURS[nodes - 1]
    ax.plot(*zip(*before[-1:], *points, strict=True), look, color=plots.GREY, linewidth=1.5)
    ax.plot(*zip(*points, strict=True), look, color=colour, marker=plots.MARKERS[nodes - 1], markersize=12, markerfacecolor="white" if why_not else colour)
    ax.annotate(f"{nodes} node{'s' * (nodes > 1)}", points[-1], (-12, -8), textcoords="offset points", color=colour, fontweight="bold", ha="right", va="top")
    before += points
for height, (what, at) in zip((0.99, 0.92, 0.85), [(what, at) for what, at in moments.items() if what != "began"], strict=True):
    ax.axvline(at - zero, color="black", linestyle=":")
    ax.text(at - zero, height, f" {what.replace('both are told to stop', 'stop')}", transform=ax.get_xaxis_transform(), va="top")
ax.set(xlabel="seconds", ylabel="loss (cross-entropy)", title="Two nodes, one, two" + (" (recorded)" if why_not else "") + (", SYNTHETIC DATA" if elastic[0]["dataset"] == "synthetic" else ""))
ax.margins(x=0.15, y=0.1)
ax.set_ylim(top=max(loss for _, loss in before) + 0.3 * (before[0][1] - before[-1][1]))
plt.show()

# %%
console = "".join(file.read_text() for file in sorted(lost_and_back.glob("node*.out")))
batches = re.findall(r"(\d+) rank\(s\) x batch (\d+) = (\d+) images", console)
alone = next((batch for batch in batches if batch[0] == "1"), None)
went_on = [record for record in elastic if record["kind"] == "restart"]
gaps = [after["time"] - moments[what] for after, what in zip(went_on[-2:], ("node1 is killed", "node1 is started again"), strict=True)]
assert alone and went_on[-2]["epoch"] > 0 and elastic[-1]["status"] == "resumable"
Markdown(f"Alone, node0 took **{alone[2]}** images a step (you said {my_images}): `--global-batch-size` gives each rank the larger share, so the learning rate stays right. It went on in epoch "
         f"**{went_on[-2]['epoch']}** (you said {my_first_epoch}), {gaps[0]:.0f} s after the loss. {gaps[1]:.0f} s after node1 came back, both trained. "
         f"The log ends with the status **{elastic[-1]['status']}**: the same command would go on.")

# %% [markdown]
# - When node1 comes back, nothing has failed. `torchrun` stops the healthy rank with SIGTERM. `main.py` then writes a checkpoint and ends with status 75, so no step is lost. SIGUSR1, which Slurm can send
#   before a job's time is over, does the same.
# - Coming back needs the environment variable `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` on all nodes; `scripts/cluster/lose_node.py` sets it. Without it, we have seen it fail with torch 2.14
#   and 2.15.
# - `--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3` makes the survivor notice the loss sooner.
# - node0 keeps the rendezvous (`--rdzv-endpoint=node0:…`). If that one is lost, all is lost: give that task to a machine that does not train.
#
# ## A cut link
#
# A process that dies closes its connections, and the others hear of it at once. When a *cable* is cut, nothing is closed. The packets are lost, and nobody is told.
#
# **Predict.** The second pair of nodes ran with `--timeout 5`. When node1's link was cut, after how many seconds did node0 give up? And with PyTorch's default?

# %%
my_gave_up, my_default = 0, 60  # seconds

# %%
moments_cut = json.loads((cut / "moments.json").read_text())
silence = moments_cut["node0 gives up"] - moments_cut["the link of node1 is cut"]
line = next(line for line in (cut / "node0.out").read_text().splitlines() if "waited in epoch" in line)
print("\n".join(textwrap.wrap(f"node0: {line}", 130)))
print(f"node1: {(cut / 'node1.out').read_text().strip()[:130] or '(nothing yet: it still asks the store, which it cannot reach)'}")
defaults = torch.distributed.constants
nccl = defaults.default_pg_nccl_timeout  # None: this torch has no NCCL
waits = {"--timeout 5, " + ("recorded" if why_not else "measured"): silence, "main.py's default": main_options.get_parser().get_default("timeout"),
         **({"PyTorch's, NCCL": nccl.total_seconds()} if nccl else {}), "PyTorch's, gloo": defaults.default_pg_timeout.total_seconds()}

# %%
longest = max(waits.values())
on_gpus = waits.get("PyTorch's, NCCL", longest)
fig, ax = plt.subplots(figsize=(14, 5))
for y, seconds in enumerate(waits.values()):
    look = {"facecolor": "white", "linestyle": ":"} if y else {"facecolor": "white", "hatch": "/"} if why_not else {"facecolor": plots.COLOURS[0]}
    ax.barh(y, seconds, height=0.6, edgecolor=plots.COLOURS[0], linewidth=3, **look)
    ax.text(seconds, y, f"  {seconds:.1f} s" if seconds < 100 else f"  {seconds / 60:.0f} min", va="center", fontweight="bold")
ax.set_yticks(range(len(waits)), waits)
ax.set(xscale="log", xlim=(1, 2e4), xlabel="seconds in which all ranks wait")
ax.invert_yaxis()
ax.grid(axis="y", visible=False)
ax.set_title("How long a cut link goes unnoticed (dotted: defaults, predicted)")
plt.show()
Markdown(f"node0 gave up after **{silence:.1f} s** (you said {my_gave_up}), and by gloo's default it would have been **{longest:.0f} s** (you said {my_default}). All ranks wait for one: "
         f"with 64 GPUs, {on_gpus / 60:.0f} minutes are {64 * on_gpus / 3600:.1f} GPU hours.")

# %% [markdown]
# So why not a second? The same clock runs when a rank is only *slow*: when rank 0 writes a large checkpoint, evaluates alone, or waits for a busy disk, the others wait in a collective.
# The timeout must be longer than the longest wait of a healthy run. Look for that wait in your logs, and take a few times as much.
#
# The line that node0 printed above comes from `main.py`. It names the rank that waits, where it stands, and of whom there was no word: **look there first**.
#
# ## Many writers, another number of readers
#
# In DDP each rank holds the whole model, so rank 0 can write it alone. When the ranks *divide* a model among them (FSDP), none of them has it all.
# `torch.distributed.checkpoint` (DCP) lets each write its part. `scripts/lessons/sharded_checkpoint.py` saves LeNet, which is whole on every rank, and a table whose rows
# are divided among the ranks.
#
# **Predict.** Two ranks hold LeNet twice. How often does it stand in the folder?

# %%
my_copies = 2

# %%
# !torchrun --nproc_per_node=2 scripts/lessons/sharded_checkpoint.py --save results/live/11_dcp

# %%
pieces = sharded_checkpoint.contents("results/live/11_dcp")
files = sorted({piece["file"] for piece in pieces})
fig, ax = plt.subplots(figsize=(15, 4.8))
for y, file in enumerate(files):
    start = 0
    for piece in sorted((piece for piece in pieces if piece["file"] == file), key=lambda piece: piece["name"]):
        kib = piece["bytes"] / 1024
        ax.barh(y, kib, left=start, height=0.62, color=plots.COLOURS[1 if piece["name"] == "table" else 0], edgecolor="white", linewidth=2)
        name = f"table, from row {piece['first']}" if piece["name"] == "table" else piece["name"]
        if kib > 30:
            ax.text(start + kib / 2, y, name, ha="center", va="center", color="white", fontweight="bold", fontsize=14)
        start += kib
ax.set_yticks(range(len(files)), [f"{file}\n(rank {number})" for number, file in enumerate(files)])
ax.invert_yaxis()
ax.grid(axis="y", visible=False)
ax.set(xlabel="KiB", title="What each rank wrote (blue: LeNet, orange: the shared table)")
plt.show()
copies = len([piece for piece in pieces if piece["name"] == "fc1.weight"])
Markdown(f"LeNet stands there **{copies}** time (you said {my_copies}): what all hold, the ranks divide among themselves, and each writes some of it. Of the table each wrote its own rows.")

# %% [markdown]
# Now we read it **here**, in this notebook: one process, no process group. No file holds all of it.

# %%
loaded, expected = sharded_checkpoint.load("results/live/11_dcp"), sharded_checkpoint.expected()
assert all(torch.equal(loaded[name], value) for name, value in expected.items())
Markdown(f"One process has read what two wrote: a table of {loaded['table'].shape[0]} rows, and {len(loaded) - 1} tensors of LeNet, bit for bit. DCP reads into the tensors that you have, whatever "
         "number of ranks they are shared by. The same folder would load on three.")


# %% [markdown]
# A DCP checkpoint is many files, which cannot be replaced in one moment. So write each checkpoint into a folder of its own, and delete an old folder only when the new one is complete.
#
# ## Exercises
#
# 1. A run has made `done` steps in all and is killed. `main.py` writes every `every` steps, counted from the start of the run, and after each epoch of `steps_per_epoch`
#    steps. How many steps are made again?

# %%
def my_lost(done, every, steps_per_epoch):
    raise NotImplementedError


check.again(my_lost)
# check.again.hint()
# check.again.solution()

# %% [markdown]
# 2. How many seconds between two checkpoints, after Young? A write takes `write_seconds`. One node fails every `node_hours` hours on average, and any node that fails stops the job of `nodes` nodes.

# %%
def my_interval(write_seconds, node_hours, nodes):
    raise NotImplementedError


check.young(my_interval)
# check.young.hint()
# check.young.solution()

# %% [markdown]
# 3. `my_save(path, data)` replaces the file `path` by the bytes `data`. It may be killed at any moment: then `path` must hold all of the old dataset, or all of the new. The check runs your function in a process of its own
#    and kills that process, once before each single instruction. (`os`, `shutil`, `tempfile` and `Path` are imported there.)

# %%
def my_save(path, data):
    raise NotImplementedError


check.never_half(my_save)
# check.never_half.hint()
# check.never_half.solution()

# %% [markdown]
# ## What to remember
#
# - One rank dies, and with `--max-restarts` all are started again. What was not saved is lost. torchrun says who failed first, and thanks to `@record` why.
# - A checkpoint that holds everything gives the same run, here bit for bit. A whole one is on the disk at every moment.
# - Set the timeout: a cut link is silent.
# - τ = √(2δM), and the valley is wide.
#
# ## Where next
#
# - Choose another `victim` and `moment` at the top, 0 and 1.2, and run this notebook again. Rank 0 is the one that writes: what changes?
# - `python scripts/cluster/torture.py --kills 3 --only kill-a-rank kill-the-write` kills ranks at random moments, and a checkpoint in the middle of its write.
# - [10 · Launchers](10_launchers.ipynb): nodes, rendezvous, Slurm.
