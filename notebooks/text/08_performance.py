# ---
# jupyter:
#   course:
#     minutes: 120
#     quick:
#       parameters:
#         batches: 64 512
#         epochs: 2
#         map_steps: 1
#         rounds: 1
#         samples: 640
#         test_samples: 100
#       seconds: 75
#     seconds: 300
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · Performance: measure, explain, predict
#
# **The question.** `torchrun --nproc_per_node=8` starts eight processes that train one model. How much faster is that
# than one process, where is the rest lost, and can we know it before we run?
#
# **At its end** you have the same training sooner on two ranks, and know why. And there is `mine/predict.py`, which
# predicts the time of a step on networks and with batches that nobody has measured. The lesson says how far off it is.
#
# **You need** the rule for *faster* ([01](01_measure.ipynb)), all-reduce and the dial ([04](04_collectives.ipynb)),
# and buckets ([06](06_ddp.ipynb)).
#
# **Time.** About 120 minutes for you, 5 for the machine. The second of two sittings begins at *What does a
# message cost?*

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd
import torch

from course import dial, plots, runs
from lessons.l08_performance import check, show
from trainer import data, launch, models

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank: a process computes on one core
why = dial.missing()  # None where this machine has a dial, else a line that says why not
run, folder = ("echo recorded:", "results/recorded/lessons") if why else ("", "results/live")


def read(name):
    return json.loads(Path(f"{folder}/08_{name}.json").read_text())


# %% tags=["parameters"]
epochs, samples, test_samples = 5, 6144, 2000  # of main.py; the first epoch warms up
rounds = 9  # of everything that is compared
batches = "64 128 256 512 1024"  # images per step of both ranks together, first sitting
map_batches, map_rates = "32 64 128 256", "100mbit 200mbit 400mbit"  # of the map, second sitting
map_steps = 3  # of a round

# %% [markdown]
# ## What is one device?
#
# "Faster than one device" means little until we say what one device is. With GPUs it is **one GPU**, without GPUs
# **one CPU core**. Left alone, PyTorch would use all cores in one process, and a second process would find none free.
# So every process below has one thread.

# %%
cores, gpus = launch.cores(), torch.cuda.device_count()
devices = gpus or cores
print(f"one device is one {'GPU' if gpus else 'core'}; this machine has {devices}")

# %% [markdown]
# ## Eight ranks
#
# The images of an epoch and the batch of **each rank**, 64, are fixed. This is *weak scaling*: the *global batch* of
# eight ranks is 512, so an epoch has an eighth of the updates. *Strong scaling* fixes the global batch.
#
# **Predict.** How many times as many images per second as one process do eight ranks train? And is their loss after
# the last epoch higher, lower, or equal?

# %%
my_times = None  # times
my_loss = None  # "higher", "lower" or "equal"

# %%
options = f"--epochs {epochs} --samples {samples} --test-samples {test_samples}"
# !python main.py {options} --log-file results/live/08_one.jsonl

# %%
# !torchrun --nproc_per_node=8 main.py {options} --log-file results/live/08_eight.jsonl \
#     --save-model results/live/08_eight.pt

# %% [markdown]
# Eight processes ran, yet each line appears once: only rank 0 prints, and it prints sums over all ranks. It also writes
# a log, one JSON record per line:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
logs = {"one process": "results/live/08_one.jsonl", "8 ranks": "results/live/08_eight.jsonl"}


def records(log):
    """Of the last run in the log: a command that runs again adds its records."""
    every = [json.loads(line) for line in Path(log).read_text().splitlines()]
    return every[max(place for place, record in enumerate(every) if record["kind"] == "run"):]


fields = ["kind", "world_size", "samples", "epoch", "seconds", "images_per_second", "loss"]
lesson.table([{name: f"{record[name]:.4g}" if isinstance(record.get(name), float)
               else record.get(name, "") for name in fields} for record in records(logs["8 ranks"])])


# %% [markdown]
# `images_per_second` counts the images of all ranks. In the last record, `seconds` are those of the whole run.
#
# ### Exercise 1: speed-up and efficiency
#
# **Speed-up** is the speed divided by that of the baseline. **Efficiency** is the speed-up divided by the number of
# ranks.
#
# `one` and `many` are lists of such records, of one process and of several ranks. The first epoch warms up, and does
# not count. Another epoch may have been disturbed; it must not change the result. The runs need not have equally many
# images. Return the speed-up, and the efficiency from 0 to 1.

# %%
def my_speedup(one, many):
    raise NotImplementedError


# %%
check.speedup(my_speedup)
# check.speedup.hint()
# check.speedup.solution()

# %%
speedup_of, whose = check.speedup.or_ours(my_speedup)
speedup, efficiency = speedup_of(records(logs["one process"]), records(logs["8 ranks"]))
print(f"by {whose} function: speed-up {speedup:.2f}, efficiency {efficiency:.0%}")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
both = runs.read_runs(logs)
one_loss, eight_loss = both.groupby("label", sort=False)["loss"].last()
lesson.predicted(my_loss, "equal" if abs(eight_loss / one_loss - 1) < 0.01
                 else "higher" if eight_loss > one_loss else "lower", what="their loss")
left, right = plt.subplots(1, 2, figsize=(18, 6.5))[1]
plots.loss_by_epoch(both, left)
plots.loss_by_time(both, right)
lesson.figure("Left: an epoch of eight ranks has an eighth of the updates, and teaches less. Right: the same "
              "losses over time.")

# %% [markdown]
# These two programs ran one after the other, and a machine drifts. So no winner is named yet, and your prediction of
# the speed waits for a fair comparison, below.
#
# ## Two consoles from a tutorial
#
# A tutorial on data-parallel training printed two consoles: the same LeNet on CIFAR-10, once on one GPU, once with
# `torchrun --nproc_per_node=8 main.py` on eight GPUs. **We did not measure them.** They were typed in from a
# description of the page, whose address we do not have
# ([what is known of it](../results/recorded/tutorial-one-gpu-vs-eight/README.md)). The GPUs are not named. The output of
# eight GPUs ends after 1,000 characters, in the eighth epoch. The reader of logs reads consoles, too:

# %%
typed = "results/recorded/tutorial-one-gpu-vs-eight"
one_gpu, eight_gpus = (runs.read_run(f"{typed}/{name}.txt") for name in ("one_gpu", "eight_gpus"))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.two_consoles(one_gpu, eight_gpus)
lesson.figure("Dashed: published, not measured here. Left: one GPU took 20 to 41 s for the same work; why is not known. "
              "Right: the accuracy that eight GPUs printed is far below that of one. Multiplied by eight it comes "
              "near: it was printed with two digits, and moves in steps of 8 points.")

# %% [markdown]
# The printed accuracy is that of **one eighth**. Each rank divided the hits in its own eighth of the images by the
# number of **all** images, and nobody added the eight numbers up. The same mistake with the model of your eight ranks:

# %%
model = models.ConvNet()
model.load_state_dict(torch.load("results/live/08_eight.pt", map_location="cpu"))
train_set = data.get_dataset("auto")[0].first(samples)
accuracies = []
for rank in range(8):
    images, labels = train_set.__getitems__(range(rank, samples, 8))
    with torch.no_grad():
        hits = (model(images).argmax(1) == labels).sum().item()
    accuracies.append(hits / samples)  # the mistake
print(f"printed by rank 0: {accuracies[0]:.3f}; added up: {sum(accuracies):.3f}")

# %% [markdown]
# If a metric of yours shrinks as you add ranks, look for the missing all-reduce.
#
# ## What is it lost to?
#
# Three losses lie between the ideal, n times as fast with n ranks, and the speed-up:
#
# - **Oversubscription.** Only min(ranks, devices) ranks can work at the same moment. The others wait for a device. A
#   low efficiency then says nothing against DDP.
# - **Contention.** Processes that have a device each still share memory, caches and power. To measure it, as many
#   processes as ranks train a model of their own each, and **never communicate**. Their images per second, divided by
#   those of one process alone, are the **ceiling** of this model and batch on this machine. Where ranks outnumber the
#   devices, what taking turns costs is in it, too.
# - **Communication.** The rest: messages, waiting for the slowest rank, and the work of DDP itself.
#
# One launch measures all of them, interleaved.
#
# **Predict.** How many times the images per second of one process do eight processes reach that never communicate?

# %%
my_ceiling = None  # times

# %%
# !torchrun --nproc_per_node=8 lessons/l08_performance/losses.py --rounds {rounds} --out results/live/08_losses.json
speeds = json.loads(Path("results/live/08_losses.json").read_text())["speeds"]
measured = show.compared(speeds)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_times, measured[8][1].median, "times", what="speed of eight ranks")
lesson.predicted(my_ceiling, measured[8][0].median, "times", what="ceiling of eight processes")
table = pd.DataFrame([{"world_size": 1, "speedup": 1.0}, *(
    {"world_size": ranks, "speedup": of_ddp.median} for ranks, (_, of_ddp) in measured.items())])
plots.under_ceiling(table, {ranks: {"ceiling": ceiling.median, "low": ceiling.low, "high": ceiling.high}
                            for ranks, (ceiling, _) in measured.items()},
                    devices, plt.subplots(figsize=(14, 8))[1])
lesson.figure("From the ideal down to the speed-up: oversubscription (grey), contention (yellow), communication (blue).")
lesson.table(show.losses(measured, speeds, devices))

# %% [markdown]
# A row reads from left to right: the ideal, less the three losses, is the speed-up. In brackets is the 95 % interval
# of lesson [01](01_measure.ipynb). The last column compares DDP with processes that never communicate, round by round:
# below 1, with its whole interval, communication costs.
#
# ## One step, seen
#
# What is communication, within a step? Your program has several buckets of gradients. Here it runs at 150 Mbit/s, and
# is filmed.

# %%
mine = "mine/train.py --images 960 --epochs 1"
# !{run} torchrun --nproc_per_node=2 -m course.dial --rate 150mbit -m doctor --steps 3:4 --film {folder}/08_step.json \
#     {mine} 2> results/live/08_step.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
film = read("step")["film"]
plots.lanes(film)
lesson.figure("One step on two ranks" + (" (recorded)" if why else "") + ". The messages begin while backward computes. "
              "What of them lies beside a wait is exposed communication: it makes the step longer. The gap before "
              "the update is mostly the film's own work.")
lesson.table(show.exposed(film))


# %% [markdown]
# **Exposed communication** is the part of the communication that no computing hides. The rest costs nothing, as long
# as sending takes no cores. The rank whose backward ends first also waits for the other *rank*: its number in the table
# holds both. A log of rank 0 cannot tell these apart.
#
# ### Exercise 2: find the straggler
#
# `steps` is a list of steps. A step is a list of the seconds that each rank has *computed* in it, rank 0 first. One
# rank is slow, a **straggler**. Another rank was disturbed in one step; that must not count. Return (number of the slow
# rank, seconds of a usual step by which it computes longer than the others usually do).

# %%
def my_straggler(steps):
    raise NotImplementedError


# %%
check.straggler(my_straggler)
# check.straggler.hint()
# check.straggler.solution()

# %% [markdown]
# Now a real run. Two busy processes share the core of one rank of your program. The port that torchrun draws decides
# which rank, and nothing tells you.

# %%
# !{run} torchrun --nproc_per_node=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 \
#     lessons/l08_performance/straggler.py -m doctor --steps 2:12 --film {folder}/08_straggler.json \
#     mine/train.py --images 2304 --epochs 1 2> results/live/08_straggler.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
film = read("straggler")["film"]
find, whose = check.straggler.or_ours(my_straggler)
slow, longer = find(show.computed(film))
plots.lanes(film, range(5, 7))
lesson.figure("Two of its steps" + (" (recorded)" if why else "") + ". No rank goes on before the "
              "slow rank's last gradients have arrived. Until then one of them computes most of the time, and the other "
              "waits. The mean that the program printed includes the first updates, which take longest.")
lesson.verdict(f"By {whose} function **rank {slow}** is slow: it computes {1e3 * longer:.0f} ms per step longer, and the "
               "other waits for it.")

# %% [markdown]
# No faster network would help this job. A straggler is found by what each rank does *before* it meets the others.
#
# ## The same training, sooner
#
# Back to a sound machine without a dial. A message has as many bytes whatever the batch is. So the more images a step
# has, the less communication weighs. Now the **global batch** is fixed: one process takes all of it, each of two ranks
# half. The updates are then the same, but for rounding.
#
# **Predict.** From how many images per step on are two ranks 1.7 times as fast as one process?

# %%
my_batch = None  # images per step, both ranks together

# %%
# !torchrun --nproc_per_node=2 lessons/l08_performance/losses.py --global-batches {batches} --rounds {rounds} \
#     --out results/live/08_batches.json
speeds = json.loads(Path("results/live/08_batches.json").read_text())["speeds"]
by_batch = show.by_batch(speeds)
paying = show.paying(by_batch, wanted=1.7)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_batch, paying if by_batch[paying].median >= 1.7 else "none of these", what="batch for 1.7 times")
show.speedups(by_batch, wanted=1.7)
lesson.figure("The larger the batch, the more the second rank gains. The batch that is named is the first whose "
              "median reaches 1.7; the interval of the one before may hold 1.7, too.")
lesson.verdict(f"With {paying:,} images per step two ranks are {by_batch[paying]} times as fast as one process.")

# %% [markdown]
# With the batch that was named `main.py` trains, on one process and on two ranks.

# %%
same = f"{options} --global-batch-size {paying}"
# !python main.py {same} --log-file results/live/08_same_1.jsonl
# !torchrun --nproc_per_node=2 main.py {same} --log-file results/live/08_same_2.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
plots.accuracy_twice(runs.read_runs({"1 process": "results/live/08_same_1.jsonl",
                                     "2 ranks": "results/live/08_same_2.jsonl"}))
lesson.figure("Left: the two curves hardly differ. Right: two ranks are there sooner.")

# %% [markdown]
# **The same training, sooner**: sooner than this training on one process. A speed-up compares one training with itself.
# Another batch may need fewer epochs: in the first console of our run one process with 64 images per step was
# beyond this accuracy after two. Which batch reaches an accuracy soonest is the question of lesson
# [09](09_large_batch.ipynb). The first sitting ends here.
#
# ## What does a message cost?
#
# Can we know the time of a step *before* we run it? We put it together from its parts: messages, and computing. First
# all-reduces of several sizes, on two ranks at 150 Mbit/s. They begin at 64 KiB: on the dial the last 64 KiB of a
# message leave at once and delay the next one, so shorter messages show the dial, not their own time.

# %%
# !{run} torchrun --nproc_per_node=2 -m course.dial --rate 150mbit scripts/measure/message_time.py --max-bytes 4M \
#     --rounds {rounds} --out {folder}/08_messages.json > results/live/08_messages.txt
points = [(each["bytes"], each["seconds"]) for each in read("messages")["ops"]["all_reduce"]["points"]
          if each["bytes"] >= 2**16]


# %% [markdown]
# The simplest model of such times is a line: **α + β · bytes**. α is the **latency**, what even an empty message
# costs. β is 1 / **bandwidth**. Ten messages pay α ten times: so DDP makes buckets.
#
# ### Exercise 3: predict a message
#
# `points` are measured messages, (bytes, seconds), from the shortest to the longest, at least two. Return the seconds
# of a message of `bytes`: a size between two of them, or beyond either end. The points need not lie on one line.

# %%
def my_message(bytes, points):
    raise NotImplementedError


# %%
check.message(my_message)
# check.message.hint()
# check.message.solution()

# %%
seconds_of, whose = check.message.or_ours(my_message)
given = points[::2]

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.messages(points, given, seconds_of, whose)
lesson.figure("Each second size was given; the others test the prediction, with its error beside them"
              + (" (recorded)." if why else "."))
(size, seconds), (most, longest) = points[-2:]
lesson.verdict(f"From the two longest comes a bandwidth of {8e-6 * (most - size) / (longest - seconds):.0f} Mbit/s, where "
               "the dial has 150. It adds no latency.")


# %% [markdown]
# ## A step with several buckets
#
# Backward fills one bucket after another. A bucket leaves when it is full, and its all-reduce holds the link. What is
# still under way when backward has ended is exposed.
#
# In the film several messages share the link. The model sends them one after another, and assumes that the last one
# arrives at the same moment. In the film it arrives later than the bytes alone explain. How much that costs, the map
# will tell.
#
# ### Exercise 4: `predict.py`
#
# `ready`: the seconds from the step's start until each bucket has its gradients, in the order in which they leave.
# `backward`: until backward has ended. `step`: until the whole step has ended, without communication. `messages`: the
# seconds of each bucket's all-reduce. One message is under way at a time. Return (seconds of the step, seconds of
# exposed communication).

# %%
# %%mine predict.py
def predict(ready, backward, step, messages):
    raise NotImplementedError


# %%
check.step("mine/predict.py")
# check.step.hint()
# check.step.solution()

# %% [markdown]
# ## The map
#
# Steps of `train.py`'s model on two ranks, with several batches and on several networks. **Four cells**, the corners,
# are measured with their parts: when the buckets are full where nothing is sent, and how long messages take where
# nothing is computed. Everything else is predicted by `predict`, before it is measured: computing lies on the line
# through the smallest and the largest batch, and a message on that through its neighbours, by its time on the wire. A
# message goes ahead of each that is measured, as in a training the step before.

# %%
sizes, networks = [int(batch) for batch in map_batches.split()], map_rates.split()
cells = [(batch, rate) for batch in sizes for rate in networks]
corners = [(batch, rate) for batch in (sizes[0], sizes[-1]) for rate in (networks[0], networks[-1])]


def names(cells):
    return " ".join(f"{batch}@{rate}" for batch, rate in cells)


program = f"{run} torchrun --nproc_per_node=2 lessons/l08_performance/step_map.py --rounds {rounds} --steps {map_steps}"
# !{program} --cells {names(corners)} --parts --out {folder}/08_corners.json

# %%
corner = read("corners")
predict, whose = check.step.or_ours("mine/predict.py")
step_of = show.steps(predict, seconds_of, corner)
predicted = {cell: step_of(*cell, corner)[0] for cell in cells}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{"images per rank": batch, **{
    f"at {rate[:-4]} Mbit/s": f"{1e3 * total:.0f} ms, {1e3 * left:.0f} exposed" for rate in networks
    for total, left in [step_of(batch, rate, corner)]}} for batch in sizes])
lesson.verdict(f"Predicted by {whose} function, from the four corners, before any other cell was measured.")

# %% [markdown]
# **Predict.** How far will these predictions be off, in the median of the cells that were not measured yet?

# %%
my_error = None  # %

# %%
others = [cell for cell in cells if cell not in corners]
# !{program} --cells {names(others)} --parts --out {folder}/08_others.json
other = read("others")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
steps = corner["steps"] | other["steps"]
took = {(batch, rate): median(steps[f"{batch}@{rate}"]) for batch, rate in cells}
errors = {cell: predicted[cell] / took[cell] - 1 for cell in others}
worst = max(errors, key=lambda cell: abs(errors[cell]))
middle = 100 * median(abs(error) for error in errors.values())
again = 100 * median(abs(step_of(*cell, other)[0] / took[cell] - 1) for cell in others)
slower = other["computing"][str(sizes[-1])], corner["computing"][str(sizes[-1])]
show.the_map(sizes, networks, predicted, took, corners)
lesson.figure("Dashed: the corners, from whose parts everything was predicted" + (" (recorded)" if why else "") + ". Each "
              "other cell was predicted first, and then measured, in a second launch: compare a cell with its prediction, "
              "not a corner with its neighbour.")
lesson.predicted(my_error, middle, "%", what="error of the map")
lesson.verdict([
    f"The median error of the {len(others)} cells is **{middle:.0f} %**, the worst **{100 * errors[worst]:+.0f} %**, "
    f"with {worst[0]} images at {worst[1][:-4]} Mbit/s.",
    f"In the second launch a step's computing alone, with {sizes[-1]} images, took "
    "{:.2f} times as long as in the first.".format(
        *[median(now[-1] for now in slower[0]) / median(before[-1] for before in slower[1])]),
    f"With the computing that the second launch measured beside its cells, the same model's median error is {again:.0f} %."])

# %% [markdown]
# Down a column, more images hide more of the messages; along a row the network gets faster. In the end only the last
# bucket is exposed, which nothing can hide. So the map says when a faster network is worth its money: where exposed
# communication is a large part of the step. Where the predictions are too low throughout, our reading is this: the model
# takes sending to be free for the cores, and gloo's threads take some of their time.
#
# ## Why an all-reduce takes longer in training
#
# The dial's messages take milliseconds on the wire. **Without a limit** the wire takes next to nothing, yet in
# training an all-reduce of LeNet's gradients takes longer than one that follows another. Is it the bytes, or what the
# ranks do between two messages?
#
# **Predict.** The same all-reduce, timed from the arrival of the last rank. What makes it longer than
# one that follows another: a pause in which the cores sleep, computing before it, or either of them?

# %%
my_cause = None  # "pause", "computed" or "either"

# %%
# !torchrun --nproc_per_node=2 lessons/l08_performance/waking.py --rounds {rounds} --out results/live/08_waking.json
waking = json.loads(Path("results/live/08_waking.json").read_text())["rounds"]

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.waking(waking)
lesson.figure("If 400 bytes lose time, too, it is not the bytes.")
lesson.predicted(my_cause, show.cause(waking), what="why a message takes longer")
lesson.verdict(show.claims(waking))

# %% [markdown]
# Where the intervals lie above 1, it is not the bytes: 400 bytes lose time, too. Nor does it need computing: a pause
# alone makes the all-reduce longer, and so does computing alone. These rounds do not tell which costs more. What the
# situations have in common is that for some milliseconds nothing was sent. Our reading: gloo's threads have gone to
# sleep, and waking them is a cost per message, whatever its bytes are. So measure a message where it
# is used, or where the wire takes much longer than the waking, as on the dial or between machines.
#
# ## A published series
#
# The model on machines that we do not have. **We measured nothing here.** [The Ultra-Scale
# Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) (Hugging Face, 2025) published the speed of a
# language model on 8 to 256 H100s with data parallelism alone, and for the same kind of cluster the bandwidth of an
# all-reduce of 256 MB on 1 to 32 nodes. The model: the time per token is a constant plus a part proportional to the time
# per byte of an all-reduce. It holds for weak scaling, each GPU's tokens per step fixed; whether the series was measured
# so, we do not know. Two points are given, 8 GPUs and 64. `seconds_of` gets 1 / bandwidth, the time per byte, in the
# place of the bytes.

# %%
nodes = {1: 436.0, 2: 361.7, 4: 160.1, 8: 99.6, 16: 84.7, 32: 64.9}  # GB/s
tokens = {1: 40149.94, 2: 37609.69, 4: 35367.61, 8: 31112.23, 16: 26446.44, 32: 15700.38}  # per second per GPU
given = [(1 / nodes[each], 1 / tokens[each]) for each in (1, 8)]
line = {each: 1 / seconds_of(1 / nodes[each], given) for each in nodes}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.published([8 * each for each in nodes], [tokens[each] / tokens[1] for each in nodes],
               [line[each] / tokens[1] for each in nodes], [8, 64])
off = {8 * each: line[each] / tokens[each] - 1 for each in nodes if each not in (1, 8)}
lesson.figure("Hollow: published. Grey: the two points that the model was given. The errors stand beside the others.")
lesson.verdict("Predicted speed, off by " + ", ".join(f"{error:+.0%} on {gpus} GPUs" for gpus, error in off.items()) + ".")

# %% [markdown]
# Between its two points the model is near. Beyond them it is too high, and more so with each doubling: extrapolation
# is the test. The bandwidth of one long message explains only a part of what 256 GPUs lose. Latency in a ring of 32
# nodes, stragglers among 256 ranks, and other jobs on the network are not in it, and the series does not tell them
# apart. This model from few GPUs was too hopeful for many: use it for "would a faster network help?", and not as
# a promise.
#
# ### Try it
#
# Ranks that share a batch, on links that you choose.

# %%
lesson.interactive("scaling")

# %% [markdown]
# ## Your machine on the class's board
#
# In a class, hand in the folder `results/live`. A log holds what was run, on how many cores of which processor, and how
# fast, but no name. If you want a name on the board, write it here:

# %%
board_name = None  # at most 40 characters
lesson.sign(board_name)

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Say what one device is and what is held fixed; only then does a speed-up mean something. With the global batch
#    fixed, several ranks do the same training, sooner.
# 2. Oversubscription, contention, communication: processes that never communicate set the ceiling. Of the communication
#    mainly the exposed part costs; on CPUs sending takes cores, too. A straggler looks like communication to all other
#    ranks.
# 3. Interpolate where there are neighbours. Follow each bucket from full to arrived. Predict before you measure, and
#    give every error.
#
# **Next:** [09 · Large batches](09_large_batch.ipynb). More ranks make the global batch larger. What does that do to
# the training?
