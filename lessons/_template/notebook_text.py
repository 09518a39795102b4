# ---
# jupyter:
#   course:
#     minutes: 10
#     quick:
#       parameters:
#         ranks: 2
#       seconds: 20
#     seconds: 20
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # NN · One mean of many ranks
#
# **The question.** The ranks have different numbers of items. What is the mean of all?
#
# **You will be able to**
#
# - take a mean over ranks in which each item counts once.
#
# **You need** [lesson 04](04_collectives.ipynb) for `all_reduce`.
#
# **Time.** About 10 minutes for you, 1 for the machine.

# %%
from course import lesson; lesson.begin()

# %%
import json
from pathlib import Path


from lessons._template import check, show

# %% tags=["parameters"]
ranks = 3  # that torchrun starts

# %% [markdown]
# ## Numbers on ranks
#
# Rank 0 has the number 0. Rank 1 has 0 and 1. Rank 2 has 0, 1 and 2. The
# [program](../lessons/_template/hello.py) takes the mean of each rank, and the mean of all six numbers.
#
# **Predict.** What is the mean of all six numbers? And the mean of the three means?

# %%
my_mean_of_all = None  # a number
my_mean_of_means = None  # a number

# %%
# !OMP_NUM_THREADS=1 torchrun --nproc_per_node={ranks} lessons/_template/hello.py \
#     --out results/live/hello.json
measured = json.loads(Path("results/live/hello.json").read_text())
lesson.predicted(my_mean_of_all, measured["mean"])
lesson.predicted(my_mean_of_means, sum(measured["means"]) / ranks)

# %%
show.means(measured)
lesson.figure("The ranks hold different counts, so their means count differently.")

# %% [markdown]
# The two lines differ: a number on a rank with few numbers counts more in the mean of means.
#
# ### Exercise: the mean of all
#
# Each rank has sent the sum of its numbers and their count. `sums` and `counts` are lists, rank 0's first. Return the
# mean of all numbers.


# %%
def my_mean(sums, counts):
    raise NotImplementedError


# %%
check.mean(my_mean)
# check.mean.hint()
# check.mean.solution()

# %% [markdown]
# ## What to remember
#
# 1. A mean of means is wrong where the ranks hold different numbers of items.
# 2. Two sums suffice: that of the items, and their count.
# 3. Add up over the ranks first; divide once, at the end.
#
# **Next:** [00 · Start here](00_start_here.ipynb).
