# ---
# jupyter:
#   course:
#     minutes: 75
#     quick:
#       parameters:
#         epochs: 2
#         ranks_to_run: 1 2
#         samples: 640
#         test_samples: 100
#       seconds: 30
#     seconds: 150
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · A larger batch
#
# **The question.** Eight ranks make the batch of each update eight times as large. What does that do to learning, and
# what can one do about it?
#
# **You will be able to**
#
# - say why more ranks may learn less from the same images, and judge a run by its time to an accuracy;
# - choose a learning rate for a larger batch, and say how far the rules for it can be trusted;
# - measure the noise of a gradient, also while ranks train;
# - accumulate gradients of micro-batches of unequal size on several ranks.
#
# **You need** [05 · Who sees which image](05_distributed_sampler.ipynb) and [06 · DDP](06_ddp.ipynb). No GPU.
#
# **Time.** About 75 minutes for you, 3 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import math
import os

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

from trainer import data
from trainer import models
from course import runs
from course.lesson import some
from lessons.l09_large_batch import check, show

# %% tags=["parameters"]
ranks_to_run = "1 2 4 8"  # the last is compared with the first
epochs = 4  # passes over the training images
samples = 10_000  # training images
test_samples = 2_000  # test images, looked at after each epoch
lr = 0.01  # learning rate of one rank

# %% [markdown]
# ## The same images, fewer updates
#
# All ranks together change the weights once a step, by the mean gradient of *all* their images. These images are the
# **global batch**. `--batch-size` is the batch of each rank; here it stays as it is.

# %%
sizes, batch_size = [int(number) for number in ranks_to_run.split()], 64
most = sizes[-1]
updates = {n: runs.updates_per_epoch(samples, n, batch_size) for n in sizes}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{"ranks": n, "global batch": n * batch_size, "updates an epoch": count,
               f"in {epochs} epochs": epochs * count} for n, count in updates.items()])

# %% [markdown]
# One rank and all ranks train for the same epochs: they see the same images, equally often. The learning rate is the
# same, too. The optimizer is SGD with momentum 0.9. (Adam follows below.)
#
# **Predict.** How does the accuracy on the test images change? Write the last row's accuracy, divided by the first
# row's. (Blind guessing gets one of ten classes right.)

# %%
my_share = None  # accuracy with the most ranks / accuracy with one

# %% [markdown]
# `main.py` now runs with each number of ranks. The ranks are processes on the CPU, also on a machine with GPUs: a GPU
# changes the seconds, not the learning. First we remove the logs of an earlier time.

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank
out = "results/live/09"
common = f"--device cpu --optimizer sgd --lr {lr} --epochs {epochs}"
common += f" --samples {samples} --test-samples {test_samples}"
# !rm -rf {out}
# !for n in {ranks_to_run}; do \
#     torchrun --nproc_per_node=$$n main.py {common} --batch-size {batch_size} \
#         --log-file {out}/ranks-$$n.jsonl || exit; done

# %% jupyter={"source_hidden": true} tags=["hide-input"]
logs = {some(n, "rank"): f"{out}/ranks-{n}.jsonl" for n in sizes}
ranks_alone = runs.read_runs(logs)
final = ranks_alone.groupby("label", sort=False)["val_accuracy"].last()
lesson.predicted(my_share, final.iloc[-1] / final.iloc[0], "of one rank's accuracy")
show.for_the_same(ranks_alone)
lesson.figure("The same runs three times. Left: for the same images more ranks learn less. "
              "Middle: for the same updates the curves lie close together, so the number of "
              "updates decides. Right: against time, more ranks need not be sooner.")

# %% [markdown]
# Without momentum an update is the learning rate times a mean gradient. (Momentum adds earlier ones, for all batches
# alike.) On average that mean is the same, however many images are in it. So, on average, an update goes equally far
# *along the true gradient* with 64 images as with 512, and fewer updates go less far. (With 64 images it also goes in
# other directions, by noise, which largely cancels.) The time (on the right) depends on the machine: more ranks than
# cores take turns.
#
# ## One process can stand for the ranks
#
# DDP averages the gradients. So `W` ranks with batches of `b` compute what **one process with a batch of `W·b`**
# computes ([06](06_ddp.ipynb)). Where we ask how well the ranks *learn*, one process may stand for them, and it starts
# faster. Where we ask for *times*, it may not. We check this before we use it:

# %%
global_batch = most * batch_size
one = f"{common} --global-batch-size {global_batch}"
# !python main.py {one} --log-file {out}/one_process.jsonl

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one_process = runs.read_run(f"{out}/one_process.jsonl")
of_ranks = ranks_alone[ranks_alone["world_size"] == most]
lesson.table(show.side_by_side(of_ranks, one_process))
lesson.verdict(show.same_training(of_ranks, one_process))

# %% [markdown]
# The ranks add the numbers in a different order, so the sums are rounded differently, and such differences tend to grow
# from update to update. (The last column compares the length of the vector of all weights. `BatchNorm` would see the
# images of each rank alone, but LeNet has none.)
#
# ## A longer step
#
# With more ranks there are fewer updates, each from more images. So let each update go further. There are three rules
# for `k` times the images in an update:
#
# - **linear**: `k` times the learning rate. `k` small steps in nearly the same direction are one step, `k` times as
#   long.
# - **square root**: `√k` times. The mean over `k` times the images has `√k` times less noise, so a step `√k` times as
#   long carries about as much noise as before.
# - **linear with warm-up**: begin with the old rate, and rise to the new rate in the first epochs. Early in a training
#   the gradient changes fast, and long steps may go wrong ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# **Predict.** With which rule does the large batch come closest to one rank?

# %%
my_rule = None  # "square root", "linear" or "linear, warm-up"

# %% [markdown]
# `main.py` knows these rules: `--lr` is the rate for `--batch-size` images in an update. Two of the runs are one
# process. The linear rule runs on real ranks, because we will look at its time.

# %%
# !python main.py {one} --lr-scaling sqrt --log-file {out}/sqrt.jsonl
# !python main.py {one} --lr-scaling linear --warmup-epochs 1 \
#     --log-file {out}/warm_up.jsonl
# !torchrun --nproc_per_node={most} main.py {common} --lr-scaling linear \
#     --log-file {out}/linear.jsonl --save-model {out}/linear.pt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rules = runs.read_runs({
    "1 rank": logs[some(1, "rank")], "rate left alone": logs[some(most, "rank")],
    "square root": f"{out}/sqrt.jsonl", "linear": f"{out}/linear.jsonl",
    "linear, warm-up": f"{out}/warm_up.jsonl"})
after = rules.groupby("label", sort=False)["val_accuracy"].last()
lesson.predicted(my_rule, show.closest(after, to="1 rank"))
ax = plt.subplots(figsize=(13, 7))[1]
show.accuracy_along(rules, "images", ax, f"{global_batch} images an update, and 1 rank")
lesson.figure("All runs see the same images. With the old rate the large batch ends far "
              "below 1 rank. The table below has the gap that each rule leaves.")
lesson.table(show.rules(after, test_samples, to="1 rank"))


# %% [markdown]
# (± is the standard error that comes from the number of test images.) These runs have one seed. With another seed two
# rules that are close may change places: the recorded runs below show how much the seeds scatter.
#
# ### Exercise 1: the rate of each update
#
# `lr` was right when an update saw `batch` images. Now there are `ranks` ranks, each with `batch_size` images. Use the
# linear rule with warm-up: the rate rises from `lr`, by the same amount from each update to the next, and reaches the
# full rate at update `warmup_epochs * per_epoch`. Return the rate of one `update`; the first is number 0.

# %%
def my_rate(lr, batch, ranks, batch_size, update, per_epoch, warmup_epochs):
    raise NotImplementedError


# %%
check.rate(my_rate)
# check.rate.hint()
# check.rate.solution()

# %% [markdown]
# Now your rates train: one process, on the images that `main.py` took for each update. (As long as your function is
# not right, ours does, and the picture says so.)

# %%
torch.set_num_threads(1)
train_set, test_set = data.get_dataset("auto")
train_set, test_set = train_set.first(samples), test_set.first(test_samples)
rate, whose = check.rate.or_ours(my_rate)
torch.manual_seed(0)  # main.py's first weights, and its order of the images
model = models.ConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
sampler = DistributedSampler(train_set, num_replicas=1, rank=0)
per_epoch, rates, accuracies = math.ceil(samples / global_batch), [], []
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for chosen in torch.tensor(list(sampler)).split(global_batch):
        rates.append(rate(lr, batch_size, most, batch_size, len(rates), per_epoch, 1))
        optimizer.param_groups[0]["lr"] = rates[-1]
        images, labels = train_set.__getitems__(chosen)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        images, labels = test_set.__getitems__(range(len(test_set)))
        accuracies.append((model(images).argmax(1) == labels).float().mean().item())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.with_rates(rates, accuracies, rules, f"{whose} rates")
lesson.figure("Left: the rate rises during the warm-up, and then stays. Right: one "
              "process with these rates follows main.py's run with a warm-up, since it "
              "makes the same updates.")

# %% [markdown]
# With the right rates this is `main.py`'s training once more. The two still differ a little: rounding begins the
# difference, and a high rate makes it grow. Do not compare two single runs more finely than these two differ.
#
# ## Is it worth the time?
#
# Images a second are not the aim. You wait for an *accuracy*: here, seven tenths of what one rank reached in the end.
# (The accuracy is known after each epoch only, so the times are those of whole epochs.)
#
# **Predict.** Compare the largest number of ranks, with the rate left alone, with one rank: when do the ranks reach
# that accuracy? (Less than an epoch apart is too close to call.)

# %%
my_when = None  # "sooner", "later or never" or "too close to call"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
timed = runs.read_runs(logs | {f"{most} ranks, linear": f"{out}/linear.jsonl"})
target = 0.7 * after["1 rank"]
reached = show.reached(timed, target)
lesson.predicted(my_when, show.sooner(reached, some(most, "rank"), some(sizes[0], "rank")))
show.speed_and_time(reached, target)
lesson.figure("Left: a longer bar is better. Right: a shorter bar is better, and a run "
              "without a bar never got there. A long bar on the left need not mean a "
              "short one on the right.")
lesson.verdict(show.fastest(reached))

# %% [markdown]
# All of these are real ranks. Where each rank has a device of its own, throughput can grow with the ranks, and the rule
# decides how much of the gain remains as time to an accuracy. Where ranks share cores, throughput cannot grow beyond
# that of the cores, and there are still fewer updates.
#
# ## More seeds, more rates (recorded)
#
# One seed proves little. [`results/recorded/large-batch`](../results/recorded/large-batch/README.md) holds runs of
# LeNet with three seeds (each has its own first weights and its own order of the images), four batches and many rates:
# 5 epochs of 10,000 images of CIFAR-10. Most are one process that stands for ranks; those with a warm-up are 8 real
# ranks.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
recorded = show.last_epochs(runs.read_runs("results/recorded/large-batch"))
sgd, adam = (recorded[recorded["optimizer"] == name] for name in ("sgd", "adam"))
by_rule = show.chosen_by_rules(sgd, lr=0.01, batch=64)
show.by_rule(by_rule, plt.subplots(figsize=(13, 7.5))[1], "SGD, three seeds: mean ± one sd")
lesson.figure("The larger the batch, the more accuracy is lost with the old rate, and the more "
              "the linear rule wins back. Bars: one standard deviation (sd) of the seeds.")
lesson.table(show.seeds(by_rule, 512))
linear = show.against(sgd, 0.01, 64, 512, "linear", "square root")
risen = show.against(sgd, 0.01, 64, 512, "linear, warm-up", "linear")
lesson.verdict(f"Accuracy with 512 images an update: linear ÷ square root: {linear}; "
               f"linear with warm-up ÷ linear: {risen}.")

# %% [markdown]
# Two runs with the same seed are a pair, and the brackets hold the smallest and the largest ratio. By the rule of
# lesson [01](01_measure.ipynb) three pairs are too few to name a winner.
#
# A rule is a guess at where the best rate lies. Here are many rates for each batch.
#
# **Predict.** 512 images instead of 64. How many times as large is the best rate?

# %%
my_times = None  # how many times, ×

# %% jupyter={"source_hidden": true} tags=["hide-input"]
by_rate = show.over_seeds(
    sgd[sgd["lr_scaling"] == "none"], ["global_batch", "lr", "source", "machine"])
small, large = (show.about_as_good(by_rate[by_rate["global_batch"] == batch])
                for batch in (64, 512))
times = large[0] / small[1], large[1] / small[0]  # any of the rates about as good may be the best
right = my_times is not None and times[0] <= my_times <= times[1]
lesson.predicted(my_times, my_times if right else f"{times[0]:.2g} to {times[1]:.2g}", "×")
ax = plt.subplots(figsize=(15, 9))[1]
show.by_rate(by_rate, ax, "Accuracy after 5 epochs, by rate", lr=0.01, batch=64)
lesson.figure("Each curve rises to its best rate, and then falls. From 64 to 512 images "
              "the peak moves to the right, but not at each step. The broad lines join "
              "the rates that a rule chooses, beginning with 0.01 for 64 images.")
lesson.table(show.best_rates(by_rate))

# %% [markdown]
# Most rates tried are twice the one before, so the true best rate may be up to twice as high or as low. *About as good*
# are all rates within one standard deviation of the best. Compare those of the last row with those of the first row
# before you say which rule is right: the row of 64 images may hold two rates, and then the answer to the prediction is
# a range.
#
# ### Adam
#
# Adam divides each gradient by its own recent size, so its update depends little on the length of the gradient. For
# Adam the square root has the better argument ([Malladi et al. 2022](https://arxiv.org/abs/2205.10287); their rule
# changes β₁, β₂ and ε as well). Here is the same training with Adam, `main.py`'s default. For 64 images the rate is
# `main.py`'s default, too: 0.001.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.seeds(show.chosen_by_rules(adam, lr=0.001, batch=64), 512))
root = show.against(adam, 0.001, 64, 512, "square root", "rate left alone")
linear = show.against(adam, 0.001, 64, 512, "linear", "square root")
lesson.verdict(f"Accuracy with 512 images an update: square root ÷ rate left alone: {root}; "
               f"linear ÷ square root: {linear}.")
lesson.table(show.best_rates(show.over_seeds(adam, ["global_batch", "lr"])))

# %% [markdown]
# In these runs, with Adam the large batch loses less if the rate stays, and the two rules are closer to each other. The
# highest mean lies between the two rules' rates, and three seeds are too few to say that it is better than the linear
# rule's. So a rule is a first guess: try a rate below it, and one above.
#
# ### The published result
#
# Goyal et al. trained ResNet-50 on ImageNet for 90 epochs, in five trials. The small batch is 256 images (8 GPUs), the
# large one 8,192 (256 GPUs), so `k` is 32 ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)):
#
# | images an update | learning rate | table | validation error, % |
# |:--|:--|:--|--:|
# | 256 | 0.1 | 1 | 23.60 ± 0.12 |
# | 8,192, rate left alone | 0.1 | 2a | 41.67 ± 0.10 |
# | 8,192, square root | 0.1 · √32 | 2a | 26.22 ± 0.03 |
# | 8,192, linear, gradual warm-up | 3.2, after 5 epochs | 1 and 2a | 23.74 ± 0.09 |
# | 8,192, linear, no warm-up | 3.2 | 1 | 24.84 ± 0.37 |
#
# - The *rules*: compare the three rows of Table 2a. Its linear row has the warm-up.
# - The *warm-up*: compare the last two rows. There it takes 5 of 90 epochs. Ours took one of four above, and one of
#   five in the recorded runs. So short a training hardly makes up for the short steps of its first epoch.
# - The *limit*: with more than 8,192 images their error rises (Figure 1). [Shallue et al.
#   2018](https://arxiv.org/abs/1811.03600) tried many models. In each of them, from some batch size on, a larger batch
#   saves no more steps. That batch size differs much between models, and no rule fits all.
#
# ## Why: what do more images buy?
#
# The gradient of a batch is an estimate of the true gradient, that of *all* images. How far off is it? We draw batches
# at random, take their gradients, and average them in groups, as ranks do. We do this with the first weights of a
# model, and with the weights that the linear run saved.
#
# **Predict.** For some number of images the error is as large as the true gradient. After training, are this more
# images or fewer than with the first weights?

# %%
my_scale = None  # "more" images or "fewer"

# %%
images, labels = train_set.__getitems__(list(range(samples)))
torch.manual_seed(0)
first = models.MODELS["lenet"](images.shape[1], 10, images.shape[2])
trained = models.MODELS["lenet"](images.shape[1], 10, images.shape[2])
trained.load_state_dict(torch.load(f"{out}/linear.pt", weights_only=True))


def gradient(model, chosen):
    loss = cross_entropy(model(images[chosen]), labels[chosen])
    parts = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


def errors(model):
    parts = torch.arange(samples).split(500)
    true = sum(gradient(model, part) * len(part) for part in parts) / samples
    drawn = torch.randint(samples, (128, batch_size))
    each = torch.stack([gradient(model, batch) for batch in drawn])
    error = {}
    for k in (1, 2, 4, 8, 16):
        means = each.unflatten(0, (-1, k)).mean(1)  # of k batches each
        off = (means - true).norm(dim=1).square().mean().sqrt()
        error[k * batch_size] = (off / true.norm()).item()
    return error


error_of = {"first weights": errors(first),
            f"after {some(epochs, 'epoch')}": errors(trained)}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_scale, show.moved(error_of, batch_size))
show.gradient_errors(error_of, synthetic=train_set.name == "synthetic")
lesson.figure("Four times the images halve the error, as the dotted lines say. Where a line "
              "crosses the grey one, the error is as large as the true gradient: left of it a "
              "gradient is mostly noise.")
lesson.table(show.noise(error_of, batch_size))
lesson.verdict(show.scale(error_of, batch_size, global_batch))

# %% [markdown]
# The noise of independent images falls with the square root of their number. The last column is the batch whose error
# is as large as the true gradient, by the dotted line: the **simple noise scale** of [McCandlish et al.
# 2018](https://arxiv.org/abs/1812.06162).
#
# - **Far below it** a gradient is mostly noise, and more images allow a longer step.
# - **Far above it** the direction is known already, and more images add little.
#
# The noise scale differs between models, and changes during training. In that paper it grows, often tenfold or more,
# and so some trainings let the batch grow, too. No rule for the rate can be right for every model, at every time.
#
# ### Exercise 2: the noise scale, while ranks train
#
# Nobody computes the true gradient during training, and ranks do not need it. Let `G` be the squared norm of the true
# gradient, and `S` the mean squared error of the gradient of one image. The squared norm of the gradient of `n` images
# is, on average, `G + S/n`. The ranks know this norm for two `n`: the batch of one rank, and the global batch. That
# gives two equations for the two unknowns G and S. The noise scale is `S / G`.
#
# Write `my_noise_scale(gradient, batch_size)`. `gradient` is this rank's own, before any all-reduce: a flat tensor,
# of the mean loss over its `batch_size` images. Every rank returns the same number, from the gradients of all ranks.
# Do not change `gradient`. (With DDP, a communication hook sees each bucket of it before it is sent: lesson
# [14](14_make_it_faster.ipynb).)

# %%
# %%writefile results/live/09_noise.py
import torch
import torch.distributed as dist


def my_noise_scale(gradient, batch_size):
    raise NotImplementedError


# %%
check.noise_scale("results/live/09_noise.py")
# check.noise_scale.hint()
# check.noise_scale.solution()

# %% [markdown]
# ## A large batch without many ranks
#
# You have two GPUs, and want to repeat a training that was published for eight. With the published global batch you can
# keep the published learning rate. Gradient accumulation ([07](07_traps.ipynb)) makes the batch out of
# **micro-batches**, parts that fit in memory. In 07 all had the same size. Often their sizes differ: the last
# micro-batch of an epoch is smaller, and texts have unequal numbers of words. Then the mean of the means is not the
# mean. A widely used library [had this wrong until 2024](https://huggingface.co/blog/gradient_accumulation).
#
# A second trap is **clipping**: `torch.nn.utils.clip_grad_norm_(parameters, max_norm)` shortens the gradients in
# `.grad` if their norm is larger than `max_norm`. It needs the gradient of the whole batch.
#
# ### Exercise 3: one update from unequal micro-batches
#
# Write `my_update(ddp, micro_batches, optimizer, max_norm)`. `micro_batches` is a list of `(inputs, labels)`, this
# rank's own. All ranks have equally many micro-batches, but of unequal size. Make **one** update. It must equal that of
# one process which has all rows of all ranks in one batch, takes the mean of `cross_entropy` over them, and clips the
# gradient to `max_norm`. Let DDP all-reduce the gradients once. (DDP divides the sum of the ranks' gradients by the
# number of ranks. You want it divided by the rows of all ranks.) (Other, small all-reduces are free. The gradients are
# zero when your function is called.)

# %%
# %%writefile results/live/09_update.py
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_


def my_update(ddp, micro_batches, optimizer, max_norm):
    raise NotImplementedError


# %%
check.update("results/live/09_update.py")
# check.update.hint()
# check.update.solution()

# %% [markdown]
# When the number of ranks changes during a training ([11](11_fault_tolerance.ipynb)), so does the global batch, if
# `--batch-size` is fixed. With `--global-batch-size` it stays, and so do the rate and the updates in an epoch.
#
# ## What to remember
#
# 1. More ranks with the same `--batch-size`: a larger global batch and fewer updates. Judge a run by its **time to an
#    accuracy**, over several seeds, not by images a second.
# 2. A learning rate that follows the global batch is a first guess: linear for SGD, the square root or above
#    it for Adam here. Try a rate below it and one above. From some batch on more images buy little.
# 3. Do you want the same training, only faster? Keep the *global* batch. Every row has the same weight in it, in any
#    rank and any micro-batch.
#
# **Next:** [10 · From one machine to a cluster](10_launchers.ipynb). Until now `torchrun` started the ranks of one
# machine; what starts them on several?
