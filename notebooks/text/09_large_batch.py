# ---
# jupyter:
#   course:
#     minutes: 60
#     quick:
#       parameters:
#         epochs: 1
#         images: 2048
#         pairs: 1
#       seconds: 30
#     seconds: 290
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · Large batches
#
# **The question.** More ranks make the batch of an update larger. Up to which batch does that save updates, and which
# learning rate does it need?
#
# **At its end** your program has two more parts, `rate.py` and `noise.py`. You have found a batch and a rate with which
# two ranks reach an accuracy sooner than one, and you know by how many seconds.
#
# **You need** your program with its parts, up to [07](07_traps.ipynb). The course's parts stand in for those that you
# have not written.
#
# **Time.** About 60 minutes for you, 5 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path
from statistics import median

from lessons.l09_large_batch import check, show
from lessons.l09_large_batch.record import TARGET

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank

# %% tags=["parameters"]
epochs = 30  # of the live trainings
images = 6144  # training images of each epoch
pairs = 9  # of the race at the end

# %% [markdown]
# ## Twice the batch, half the updates?
#
# The **global batch** is all images of one update, those of all ranks together. With twice the global batch an epoch
# has half as many updates. Each of them averages over more images, so its gradient is closer to that of all images. If
# an update were worth twice as much in return, the same number of images would reach the same accuracy.
#
# The recorded trainings use `train.py --small`, a network with an eighth of the arithmetic, on 6,144 images of CIFAR-10.
# Each batch was tried with three to five learning rates and three seeds, which set the first weights and the order of the
# images. A training stops at the target, or after 60 epochs. The number of ranks does not matter here: ranks compute
# the update of one process ([06](06_ddp.ipynb)). The folder
# [`results/recorded/large-batch`](../results/recorded/large-batch/README.md) has the command and every training.
#
# **Predict.** From the smallest batch to the largest, the batch grows from 16 to 3,072 images, by a factor of 192. By
# what factor does the number of updates to the target fall?

# %%
my_factor = None  # how many times fewer updates

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = show.best_rates()
middle = {row["batch"]: median(row["steps"]) for row in rows}
lesson.predicted(my_factor, middle[min(middle)] / middle[max(middle)], "times fewer updates",
                 what="updates to the target")
show.steps_to_target(rows)
lesson.figure("Each batch with the best of its rates. Marks: three seeds; the line joins their medians. On the dotted "
              "line twice the batch takes half the updates. The accuracy is known after each epoch, and between two of "
              "them a straight line is assumed. For each batch a smaller and a larger rate than the best one were "
              "tried, too.")
lesson.table([{"images per update": row["batch"], "best rate": f"{row['lr']:g}",
               "updates, three seeds": " · ".join(f"{each:.0f}" for each in row["steps"]),
               "images seen, median": f"{middle[row['batch']] * row['batch']:,.0f}"} for row in rows])

# %% [markdown]
# The curve is about straight at first, then it flattens. Where it is straight, more ranks save updates without costing
# images. Where it is flat, they see more images for the same result. [Shallue et al. 2018](https://arxiv.org/abs/1811.03600) found this
# form in every model that they tried; where it bends differs much between models.
#
# ## Which rate?
#
# A rate was right for a batch. Now the batch is `times` as large. There are two rules.
#
# - **Linear**: `times` the rate. `times` small steps in nearly the same direction amount to one step, `times` as
#   long.
# - **Square root**: `√times` the rate. The mean over `times` as many images has `√times` less noise, so a step
#   `√times` as long carries about as much noise as before.
#
# Early in a training the gradient changes fast, and a long step may go wrong. **Warm-up** begins with the old rate, and
# rises to the new one during the first updates ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)). Here that takes
# 60 updates, which is 10 of the 30 epochs.
#
# The four trainings begin from a rate of 0.02 for 64 images. That is half of the best one in the table, 0.04. The
# linear rule with warm-up, from 0.04, is below, too.
#
# **Predict.** From the best rate, 0.04, with the linear rule *and* warm-up: how many of three trainings with 1,024
# images break down, that is, fall back to guessing?

# %%
my_broken = None  # 0 to 3

# %% jupyter={"source_hidden": true} tags=["hide-input"]
names = ["same rate", "square root", "linear", "linear, warm-up"]
table = show.ends(["64 images", *names])
lesson.predicted(my_broken, sum(row["broken"] for row in show.recorded("linear, warm-up, twice the rate")), "trainings",
                 what="trainings that break down, from the best rate with warm-up")
show.rules(["64 images", *names])
lesson.figure("Recorded, three seeds each. The first panel has 64 images per update, the others 1,024, and all see the "
              "same images. Dotted: the target.")
lesson.table(table)
lesson.verdict(show.warm_up_matters())


# %% [markdown]
# *Twice the rate* is 0.04. *Broke down* means an accuracy below 15 % in any epoch after the third; guessing gets 10 %.
# Three seeds name no winner where their epochs overlap, as those of the square root and of the linear rule with warm-up
# do. A rule is a first guess: try a rate below it, and one above.
#
# Goyal et al. trained ResNet-50 on ImageNet for 90 epochs, with 256 images per update and with 8,192
# ([tables 1 and 2a](https://arxiv.org/abs/1706.02677)):
#
# | images per update | learning rate | validation error, % |
# |:--|:--|--:|
# | 256 | 0.1 | 23.60 ± 0.12 |
# | 8,192, same rate | 0.1 | 41.67 ± 0.10 |
# | 8,192, square root | 0.1 · √32 | 26.22 ± 0.03 |
# | 8,192, linear, warm-up of 5 epochs | 3.2 | 23.74 ± 0.09 |
# | 8,192, linear, no warm-up | 3.2 | 24.84 ± 0.37 |
#
# ### Exercise 1: `rate.py`
#
# Where the learning rate changes, `train.py` asks this part for it before every update. Write the linear rule with
# warm-up.
#
# - `lr` was right for a batch, and this one is `times` as large.
# - The first `update` is number 0, and has the rate `lr`. From one update to the next the rate rises by the same
#   amount. Update number `warm_up` is the first with the full rate.
# - `warm_up` may be 0: then every update has the full rate.

# %%
# %%mine rate.py
def rate(lr, times, update, warm_up):
    raise NotImplementedError


# %%
check.rate("mine/rate.py")
# check.rate.hint()
# check.rate.solution()

# %% [markdown]
# Your rate trains: `--lr-for 64` says for how many images `--lr` was right.

# %%
# !python mine/train.py --small --images {images} --epochs {epochs} --batch 1024 --lr 0.02 --lr-for 64 --warm-up 60 \
#     > results/live/09_rate.txt
# !head -1 results/live/09_rate.txt; tail -1 results/live/09_rate.txt
show.rules(["linear", "linear, warm-up"], show.live("results/live/09_rate.txt"), show.whose("rate"))
lesson.figure("Dashed: the recorded trainings with 1,024 images per update, three seeds. Solid: the training of this "
              "notebook. It has seed 0. With a right part it covers the recorded one of that seed; another processor may "
              "round differently.")

# %% [markdown]
# ## Where it bends: the noise scale
#
# The gradient of a batch is an estimate of the gradient of all images. Let `G` be the squared norm of the true
# gradient, and `S` the mean squared error of the gradient of a single image. The squared norm of the gradient of `n`
# images is on average `G + S / n`. With `n = S / G` the noise is as large as the gradient itself. This `n` is the
# **simple noise scale** ([McCandlish et al. 2018](https://arxiv.org/abs/1812.06162)). Far below it a gradient is mostly
# noise, and more images help. Far above it the direction is known already.
#
# Nobody computes the true gradient during a training, and ranks do not need it. They know the squared norm for two
# values of `n`: each rank's own gradient, and their mean. Two equations give the two unknowns.
#
# ### Exercise 2: `noise.py`
#
# Write the class that measures the noise scale while ranks train.
#
# - `before(gradient)` is a hook: backward has the gradient of one parameter, of this rank's images alone, and nothing
#   is sent yet. Do not change it.
# - `after()` is called when each `parameter.grad` holds the mean over the ranks.
# - `scale(share, all_reduce)` is called after each epoch, on every rank. `share` is a rank's images per update.
#   `all_reduce(tensor)` adds up over the ranks, in place. Return `S / G` as a number, the same on every rank, from the
#   updates since the last call. `dist.get_world_size()` gives the number of ranks.
#
# One update gives a poor estimate, and the ratio of two poor estimates is worse. Add up both squared norms over the
# updates, and divide at the end.

# %%
# %%mine noise.py
import torch
import torch.distributed as dist


class Noise:
    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.own, self.mean = torch.zeros(()), torch.zeros(())  # squared norms, added up over updates
        for parameter in self.parameters:
            parameter.register_hook(self.before)

    def before(self, gradient):
        raise NotImplementedError

    def after(self):
        raise NotImplementedError

    def scale(self, share, all_reduce):
        raise NotImplementedError


# %%
check.noise("mine/noise.py")
# check.noise.hint()
# check.noise.solution()

# %% [markdown]
# `--noise` registers your hook in a training of two ranks. PyTorch's DDP has a place of its own for such code, the
# *communication hook* ([15](15_talk_less.ipynb)).
#
# **Predict.** From how many images on is the gradient more than noise, when the target is reached?

# %%
my_noise = None  # images

# %%
# !torchrun --nproc_per_node=2 mine/train.py --small --images {images} --epochs {epochs} --batch 256 --lr 0.04 --noise \
#     > results/live/09_noise.txt
# !head -1 results/live/09_noise.txt; tail -1 results/live/09_noise.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
near, late, low, high = show.noise_range()
lesson.predicted(my_noise, near, "images", what="noise scale at the target")
show.noise(show.live("results/live/09_noise.txt"), show.whose("noise"))
lesson.figure("One value per epoch, from all of its updates. Recorded: three seeds. The live one has seed 0, as in "
              "the figure before.")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.verdict(show.scatter(near, late, low, high))

# %% [markdown]
# In McCandlish et al. the noise scale grows during a training, often tenfold or more. Ours falls during the first epochs
# and then stays; we have not found out why. One epoch alone is a poor estimate. Now the noise scale goes into the
# first picture.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.steps_to_target(rows, (low, high))
lesson.figure(f"The band holds the noise scales of single epochs, the last ten of three seeds: {low:,.0f} to {high:,.0f} "
              "images.")
lesson.verdict(show.advice(rows, near, [512, 1024]))

# %% [markdown]
# Theory and trainings agree roughly on the bend. On the rate of 512 images they do not, though 0.16, 4 times that of 64
# images, does about as well there as 0.32. The theory takes a step of plain SGD and assumes that the loss
# curves alike in all directions. The trainings have momentum, stop at an accuracy of 1,000 test images, and were tried
# with rates that differ by a factor of two. Take the noise scale as the order of magnitude of the batch from which on
# more ranks buy little.
#
# ## Two ranks, sooner
#
# Two ranks see more images per second. They reach an accuracy sooner only if their batch does not need more images by
# the same factor.
#
# ### Exercise 3: a setting for two ranks
#
# The race takes your program's whole network: with `--small` a rank would compute an eighth as much between two
# all-reduces. One rank has 64 images per update and a rate of 0.03. Choose the global batch and the rate of two ranks.
#
# - A small batch gives each rank little to compute between two all-reduces.
# - A large batch needs more images to the target: look at the last column of the first table (of the small
#   network; take it as a trend).
# - `--lr-for` and `--warm-up` are yours to use. `--batch` must be even.
# - Try your setting on one rank, too, as `one_rank`. If one rank gains as much by it, the gain is the batch's, not the
#   second rank's.
#
# **Predict**, too: how many seconds sooner than one rank? Below 0 is later.

# %%
my_setting = None  # such as "--batch 96 --lr 0.03"
my_seconds = None
one_rank = "--batch 64 --lr 0.03"

# %%
setting = my_setting or "--batch 128 --lr 0.05"
both = f"--images {images} --epochs {epochs} --until {TARGET}"
# !python lessons/l09_large_batch/race.py --one "{one_rank}" --two "{setting}" --both "{both}" \
#     --pairs {pairs} --out results/live/09_race.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
race = json.loads(Path("results/live/09_race.json").read_text())
seconds = [tuple(show.seconds_to(pair[who], images, int(show.option(options, "batch", 192)), TARGET)
                 for who, options in (("one", one_rank), ("two", setting))) for pair in race]
lesson.verdict(f"{'Your' if my_setting else 'Our'} setting, `{setting}`. {show.race(seconds)}")
if None not in sum(seconds, ()):
    lesson.predicted(my_seconds, median(one - two for one, two in seconds), "s sooner", what="two ranks against one")

# %% [markdown]
# The seconds are those of training, without start-up and evaluation. The seeds of a pair are the same. As `one_rank`
# stands, three things differ between the two: the ranks, the batch and the rate. The race does not tell which of them
# gains the time. The control is yours: your setting as `one_rank`, too. And is your setting the best one? Change it, and
# run both cells again.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. A larger batch saves updates in proportion, up to a point. From there on it costs images and buys little.
# 2. Up to about the noise scale the best rate grows with the batch; beyond it, by less. A rule is a first guess: try a
#    rate below it, and one above.
# 3. Judge a setting by its **time to an accuracy**, over several seeds. Images per second do not tell it.
#
# **Next:** [10 · From one machine to a cluster](10_launchers.ipynb). Until now `torchrun` started the ranks of one
# machine; what starts them on several?
