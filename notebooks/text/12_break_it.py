# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         many: 16
#         pairs: 1
#       seconds: 70
#     seconds: 165
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Break it
#
# **The question.** A job hangs, gives a wrong result without an error, or is too slow. How do you find the cause, with
# what the job has left?
#
# **What you will have at the end**
#
# - a function that names the rank for which 64 ranks wait;
# - a program of somebody else, repaired by you, and equal to one process;
# - a job that takes less time per epoch, because of a part that you wrote.
#
# **You need** the collectives ([04](04_collectives.ipynb)), [06 · DDP](06_ddp.ipynb), and the three questions of
# [07](07_traps.ipynb). No GPU.
#
# **Time.** About 80 minutes for you, 3 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import os

from course.compare import ratio
from lessons.l12_break_it import check, incident, repair, show

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank

# %% tags=["parameters"]
many = 64  # ranks of job 4711, a multiple of 8 from 16
pairs = 6  # of runs of job 4815: 6 or more, or no winner is named

# %% [markdown]
# ## Three incidents
#
# Each incident is a report, a folder of evidence, and a budget of **looks**: ten, five and four. A look shows one piece
# of evidence. On a cluster it would be a login to a node, a rerun or an hour in the queue, so looks are counted.
#
# Work in this order: read the report, name two suspects, and take the look that tells them apart.
# [TROUBLESHOOTING.md](../TROUBLESHOOTING.md) is the reference: search it by what you *see*. The section
# [Which hang is it?](../TROUBLESHOOTING.md#which-hang-is-it) reads stacks.
#
# ## Job 4711
#
# > 64 ranks on 8 nodes of 8 ranks. The ranks of each node add up their gradients, then the nodes' leaders (their first
# > ranks) add up these sums, and each leader sends the total to its node. No output since 03:12. No error. All
# > processes are alive.
#
# The next cell makes this happen on your machine, with other ranks at fault in every run:

# %%
# !TORCH_CPP_LOG_LEVEL=ERROR python lessons/l12_break_it/hang.py results/live/12_hang --ranks {many}
look_4711 = incident.hang("results/live/12_hang")
look_4711()

# %% [markdown]
# Every rank has left its stack, and what PyTorch's **flight recorder** held: the last 2,000 collectives that the rank
# has called. With NCCL each rank writes it to a file when a collective times out:
# [how](../TROUBLESHOOTING.md#a-hang-under-nccl-the-flight-recorder). In a dump `collective_seq_id` is the number of
# the call in its group, and `retired` says whether the call is done. `pg_config` lists the rank's groups. gloo leaves it
# empty, so the course adds it.
#
# The first two looks are chosen for you. Take the others in cells of your own, such as `look_4711("dump 9")`.

# %%
look_4711("stack 0")

# %%
look_4711("dump 0")


# %% [markdown]
# ### Exercise: the culprit
#
# By hand you follow one chain. Write the function that does it for all ranks. It gets a dict with the dump of each
# rank. It returns the rank, the description of the group and the number of the collective in which this rank is
# missing, such as `(13, "node 1", 7)`. There are two faults: the rank does not call the collective, or it calls another
# one than its group, under the same number.
#
# ```python
# dumps[9]["entries"][-1]    # "process_group": ("2", "node 1"), "collective_seq_id": 24,
#                            # "profiling_name": "gloo:broadcast", "retired": False, …
# dumps[9]["pg_config"]      # {"2": {"desc": "node 1", "ranks": "[8, 9, 10, 11, 12, 13, 14, 15]", …}, …}
# ```
#
# The check plays four other hangs, of 64 and of 48 ranks, in the [documented
# format](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html).

# %%
def my_culprit(dumps):
    raise NotImplementedError


# %%
check.dumps(my_culprit)
# check.dumps.hint()
# check.dumps.solution()

# %% [markdown]
# Now the ranks of your machine:

# %%
dumps = incident.dumps_of("results/live/12_hang")
function, whose = check.dumps.or_ours(my_culprit)
answer = function(dumps)
lesson.table(show.named(whose, answer, "results/live/12_hang"))
show.waiting(dumps, 8, whose, answer)
lesson.figure("A square is a rank, a row a node. An arrow leads from a rank to one for which it waits; it is black where "
              "a leader waits. Follow them: each chain ends at the framed rank, which waits for nobody, or in a "
              "collective that nobody else has called.")

# %% [markdown]
# PyTorch's analyzer compares the dumps, too. It reports each collective that not all members of a group have called:

# %%
look_4711.show("analyzer")

# %% [markdown]
# Every line of it is true. A rank that is missing in one group may itself wait in another group, so only the end of the
# chain is a culprit. Its stack says what it does:

# %%
look_4711.show("stack R", answer[0])

# %% [markdown]
# **In a job of your own**, before it hangs: `torch.distributed.debug.start_debug_server()` on each rank, after
# `init_process_group`, serves the stacks and the recorder of all ranks at rank 0's port 25999, also under gloo. It needs
# the packages jinja2 and aiohttp.
# `torch.distributed.breakpoint(rank=3)` opens a debugger on rank 3, and lets all others wait in a barrier. It needs a
# terminal, which a notebook's commands do not have.
#
# ## Job 4802
#
# > Our classifier trains on two ranks. No error, the loss goes down. But the accuracy in the log's last line is not what
# > we get when we load the saved file: it is better in the log.
#
# The program is `lessons/l12_break_it/jobs/job_4802.py`, by somebody else. Its source is one of the looks. A
# program of your own has 1,500 lines; this one has 168. Let the other looks tell you where to read. The first two are
# taken for you.

# %%
look_4802 = incident.silent()
look_4802()

# %%
look_4802("log")

# %%
look_4802("file")

# %% [markdown]
# **Predict.** `course.one_process` looks at six updates, unless you ask for more. Are the ranks of this job one model
# in these six?

# %%
my_one_model = None  # "yes" or "no"

# %% [markdown]
# ### Exercise: repair it
#
# The next cell copies the program to `mine/job_4802.py`, and never writes over yours. Find the cause, repair it and save
# the file. Whatever it does in one process is right.

# %%
# !test -e mine/job_4802.py || cp lessons/l12_break_it/jobs/job_4802.py mine/job_4802.py

# %%
repair.repaired("mine/job_4802.py")
# repair.repaired.hint()
# repair.repaired.solution()

# %% [markdown]
# <details><summary><b>What the evidence says</b> (open it when you are done)</summary>
#
# Both numbers of the report are true. In the log each rank evaluates its share of the images with a model of its own,
# and the file holds rank 0's. So the ranks are not one model at the end, and the question is since when.
#
# Six updates are equal, eighteen are not. The first that is not is update 16, the last of an epoch. An epoch of this job
# has 62 micro-batches, which is no multiple of 4. So look at the program's last update of an epoch. It steps with
# whatever gradients are there, and the condition that lets DDP send them is another one. A related mismatch between the
# micro-batch that sends and the one that steps was repaired in
# [FunASR](https://github.com/modelscope/FunASR/pull/3472).
#
# </details>

# %%
lesson.predicted(my_one_model, incident.one_model(), what="one model in six updates")

# %% [markdown]
# An instrument speaks of what it has seen. Let it see the places where a program does something else: the end of an
# epoch, an evaluation, a checkpoint.
#
# The [doctor](../README.md#the-doctor) watches a run for broken laws of data-parallel training, from its first step to
# its end. This is its whole report on the program as it was. Where it finds something, it ends with an error on
# purpose, and torchrun's report of that goes to a file.

# %%
# !torchrun --nproc_per_node=2 -m doctor lessons/l12_break_it/jobs/job_4802.py --images 672 --epochs 2 \
#     2> results/live/12_doctor.txt || true
print(incident.report_of("results/live/12_doctor.txt"))

# %% [markdown]
# ## Job 4815
#
# > Two ranks, with connections of 10 Gbit/s, are far from twice as fast as one process. Rank 0 spends much of each step
# > in all-reduce, so our network is too slow. We ask for a faster one.
#
# The first look is taken for you.

# %%
look_4815 = incident.slow()
look_4815()

# %%
look_4815("log")

# %% [markdown]
# Take your looks now. What does each step wait for? Name it before you read on.

# %%
my_cause = None  # "network", "rank 0", "rank 1" or "data loading"


# %% [markdown]
# ### Exercise: make it faster
#
# Write the part of the job that decides over this wait: `shard(lengths, rank, world_size)` returns the indices of this rank's
# recordings, as the job's own `shard` does. The job takes them in batches of 8, in the order that you return, and then
# shuffles the batches in the same way on all ranks.

# %%
# %%mine job_4815_shard.py
def shard(lengths, rank, world_size):
    raise NotImplementedError


# %%
check.faster("mine/job_4815_shard.py")
# check.faster.hint()
# check.faster.solution()

# %% [markdown]
# Three take turns: the job as it was, with your shard, and with the network that the report asks for, one without a
# limit. What counts is the time of an epoch: its twelve steps are unequally long, and the median that the job prints,
# *ms per step*, is that of one in the middle.

# %%
whose, before, after, unlimited = incident.in_turns(check.faster, pairs)
lesson.table([{"job 4815": name, "seconds per epoch, each run": ", ".join(f"{each:.2f}" for each in seconds)}
              for name, seconds in (("as it was", before), (f"with {whose} shard", after),
                                    ("as it was, without a limit", unlimited))])
lesson.verdict([f"Time per epoch, as it was over with {whose} shard: {ratio(before, after)}.",
                f"Time per epoch, as it was over without a limit: {ratio(before, unlimited)}."])

# %% [markdown]
# The film shows why the report was wrong. Rank 0 calls its all-reduce early and waits. A profiler of rank 0 would count
# this wait as communication:

# %%
look_4815.show("film")
lesson.predicted(my_cause, incident.last_to_call(), what="what each step waits for")

# %% [markdown]
# The list of recordings is sorted by length, and rank 1 took its second half. The all-reduce cannot end before the last
# rank has called it: a *straggler* makes every network look slow. The two ratios above say what each cure brings: of a
# faster network at most the second one. So measure on **each** rank when it calls, not how long it waits. Twice as fast
# as one process it is still not: divide the look *alone*, which is recorded, by your row. What is left each rank does
# for itself, such as the update, or in the exchange that the figure shows.
#
# ## Looks used

# %%
lesson.table(incident.score((look_4711, check.dumps), (look_4802, repair.repaired), (look_4815, check.faster)))

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. In a hang, compare the stack or the flight recorder of **each** rank, and follow the chain of waits to its end. The
#    culprit waits for nobody, or in a collective that nobody else has called.
# 2. Without an error, ask whether the ranks are one model and that of one process, and ask it at the end of an epoch,
#    too.
# 3. In a slow job, ask which rank calls the collective last. The one that waits longest is not the slow one.
#
# **Next:** [13 · Shard what is kept](13_shard_kept.ipynb). Each rank holds the whole model. What if it does not fit?
