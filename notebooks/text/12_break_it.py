# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         subset: quick
#       seconds: 65
#     seconds: 210
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Break it
#
# The mistakes that people really make with several processes: what does each look like, how do you find it, and what is the smallest repair?

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import json
import os
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.display import Markdown

from course import gallery_table, plots
from course.checks import lesson_12 as check

# %% tags=["parameters"]
subset = "all"  # "quick" runs six of the mistakes

# %% [markdown]
# Each mistake below is a script of a few lines in `scripts/broken/`, with a repaired twin. The two differ in the mistake alone. Both run here, now, each with a time limit, and you see:
#
# - **symptom**: what the broken one prints, its essential lines;
# - **diagnosis**: the tool that shows the cause;
# - **repair**: the smallest diff;
# - **proof**: what the repaired one prints.
#
# A cell fails if the broken script does *not* show its symptom, or if the repaired one does. The same entries make [TROUBLESHOOTING.md](../TROUBLESHOOTING.md), one page to search at night.
#
# **Predict.** How many percent of these mistakes end with an error message? The others are *silent*: exit status 0, and a wrong result.

# %%
my_percent = 80

# %%
table = gallery_table.read_table()
live = Path(f"results/live/12_gallery/{os.getpid()}")  # two notebooks may run at once
live.mkdir(parents=True, exist_ok=True)
for old in live.glob("*.json"):
    old.unlink(missing_ok=True)
lines = gallery_table.contents(table.values(), anchor=lambda entry: entry.heading.replace(" ", "-"))  # as Jupyter makes it from a heading
loud = sum(not entry.silent for entry in table.values()) / len(table)
Markdown("\n".join(lines) + f"\n\n{loud:.0%} of the {len(table)} end with a message (you said {my_percent} %). Most reported first; "
         "search this page for the words that you see.")

# %% [markdown]
# ## 1. A parameter without a gradient
#
# A model has a head that the loss does not use. The first step works; what happens in the second?

# %%
# !python scripts/broken/gallery.py show unused_parameter --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 2. unrecognized arguments
#
# An old script, started the old way. (Lesson [10](10_launchers.ipynb) tells how the launchers differ.)

# %%
# !python scripts/broken/gallery.py show local_rank --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 3. Address already in use
#
# You start a second job beside the first, with the same script. Both meet at the port that the script names.

# %%
# !python scripts/broken/gallery.py show address_in_use --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 4. Names that begin with module
#
# The run is over, the weights are saved. Can a plain model load them?

# %%
# !python scripts/broken/gallery.py show module_prefix --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 5. Accuracy depends on the number of ranks
#
# Nine test images on two ranks. Nine does not divide by two; what does the sampler do? (Lesson [05](05_distributed_sampler.ipynb) says how wrong it can get.)

# %%
# !python scripts/broken/gallery.py show padded_evaluation --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 6. The same order in every epoch
#
# `DistributedSampler(shuffle=True)` shuffles. Each epoch anew?

# %%
# !python scripts/broken/gallery.py show set_epoch --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 7. Fewer updates with more ranks
#
# The same options, with two ranks in place of one process. Is it the same training?

# %%
# !python scripts/broken/gallery.py show batch_per_process --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 8. Slower with more ranks
#
# Two ranks have twice the cores. Are they faster? (Lesson [07](07_performance.ipynb) measures where the time goes.)

# %%
# !python scripts/broken/gallery.py show slower --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 9a. A hang, ranks in different places
#
# A hang says nothing by itself. Here each wait ends after 6 seconds; by default it is much longer (lesson [11](11_fault_tolerance.ipynb) reads the defaults). And each rank says after 3 seconds where it stands.

# %%
# !python scripts/broken/gallery.py show hang_different --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 9b. A hang, rank 0 alone in a collective
#
# Rank 0 writes the log. So it alone needs the mean loss, and the other need not compute it …

# %%
# !python scripts/broken/gallery.py show hang_rank_0 --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 9c. A hang at the end of an epoch
#
# Rank 0 has five batches, and rank 1 has four.

# %%
# !python scripts/broken/gallery.py show hang_uneven --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 10. multiprocessing from a notebook
#
# A function in a notebook, and `mp.spawn` to start it twice.

# %%
# !python scripts/broken/gallery.py show notebook_spawn --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 11a. Every process on GPU 0
#
# `.to("cuda")` works on one GPU. Where do the tensors of rank 1 go?

# %%
# !python scripts/broken/gallery.py show all_on_gpu_0 --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 11b. A checkpoint goes back to GPU 0
#
# A checkpoint was saved on GPU 0. Each rank loads it.

# %%
# !python scripts/broken/gallery.py show map_location --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 12a. The same noise on all ranks
#
# All ranks begin with `torch.manual_seed(0)`, so that the run can be repeated. What else is the same now?

# %%
# !python scripts/broken/gallery.py show same_seed --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 12b. Other weights on each rank
#
# The opposite: each rank has a seed of its own from the start. DDP would mend that in its constructor; a loop by hand does not.

# %%
# !python scripts/broken/gallery.py show other_weights --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 13. The loss of rank 0 alone
#
# Only rank 0 prints. Of which images is the loss that it prints?

# %%
# !python scripts/broken/gallery.py show rank_0_loss --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 14. BatchNorm sees one rank only
#
# Lesson [06](06_ddp.ipynb) found it among the conditions for equality with one process. Here it is alone.

# %%
# !python scripts/broken/gallery.py show batchnorm --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 15. DataParallel fills GPU 0
#
# `nn.DataParallel` divides the batch. Does it divide the memory, too? (Lesson [02](02_data_parallel.ipynb) draws all of it.)

# %%
# !python scripts/broken/gallery.py show dp_gpu_0 --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 16. The average of averages
#
# Each rank has computed its accuracy. Add up, divide by the ranks?

# %%
# !python scripts/broken/gallery.py show average_of_averages --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 17. no_sync that saves nothing
#
# Gradients of two batches are added up before each update. `no_sync` leaves out the all-reduce of the first. Where does it belong?

# %%
# !python scripts/broken/gallery.py show no_sync --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 18. model.module drifts apart
#
# `model.module` is the model inside DDP. People reach through to it to call a method of their own, or to be rid of DDP for a moment.

# %%
# !python scripts/broken/gallery.py show ddp_module --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 19. Slurm tasks that never meet
#
# Each task of a job works out by itself where to meet the others.

# %%
# !python scripts/broken/gallery.py show slurm_rendezvous --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 20. Every rank downloads
#
# `if not file.exists(): download(file)` is right in one process.

# %%
# !python scripts/broken/gallery.py show all_download --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 21. A link that looks slower than it is
#
# The link is said to carry so many GB/s, and an all-reduce moves fewer. Is the link bad? It takes three ranks to see it: with two both figures are the same.

# %%
# !python scripts/broken/gallery.py show busbw --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 22. The wrong traceback
#
# A job of many ranks dies, and the console is full. Which traceback does one read?

# %%
# !python scripts/broken/gallery.py show wrong_traceback --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 23a. Every rank writes the checkpoint
#
# `torch.save` at the end of the epoch. Who calls it?

# %%
# !python scripts/broken/gallery.py show every_rank_writes --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## 23b. A resumed run that is another run
#
# A run is stopped and goes on from its checkpoint. Is it the same run? (Lesson [11](11_fault_tolerance.ipynb) has all that belongs in a checkpoint.)

# %%
# !python scripts/broken/gallery.py show optimizer_left_out --subset {shlex.quote(subset)} --out {live}

# %% [markdown]
# ## How much of what is printed matters
#
# For each broken script that ran: the lines that it printed, and those of them that you saw above as the symptom.

# %%
printed = {file.stem: json.loads(file.read_text()) for file in live.glob("*.json")}
printed = {name: printed[name] for name in table if name in printed}
fig, ax = plt.subplots(figsize=(15, 1.5 + 0.42 * len(printed)))
for y, found in enumerate(printed.values()):
    colour = plots.COLOURS[0 if found["silent"] else 1]
    ax.barh(y, found["lines"], height=0.75, color="#D8D8D8")
    ax.barh(y, found["matter"], height=0.75, color=colour)
    ax.text(found["lines"], y, f"  {found['matter']} of {found['lines']}", va="center", color=colour, fontweight="bold", fontsize=14)
ax.set_yticks(range(len(printed)), [f"{found['number']}. {name}" for name, found in printed.items()], fontsize=14)
ax.invert_yaxis()
ax.set(xlim=(0, 1.15 * max(found["lines"] for found in printed.values())), xlabel="lines printed by the broken run (grey: all)")
ax.grid(axis="y", visible=False)
ax.set_title("Lines that matter: orange with a message, blue silent")
plt.show()
shouting = [found for found in printed.values() if not found["silent"]]
Markdown(f"Where there is a message, {sum(found['matter'] for found in shouting)} of {sum(found['lines'] for found in shouting)} lines matter. "
         "torchrun's last block says which rank failed first; begin there. Where a mistake is silent, nobody prints the line for you: these scripts print it on purpose.")

# %% [markdown]
# ## Detective
#
# Five runs, **A** to **E**, of the same small training on two ranks: 96 images, 16 an update over both ranks, 2 epochs, 25 test images. Each has one mistake, and none gives a warning. In one order or another they are:
#
# - `set_epoch`: it is forgotten
# - `rank_0_loss`: the loss is that of rank 0 alone
# - `batch_per_process`: each rank takes the batch that is meant for both
# - `ddp_module`: `model.module(x)` in place of `model(x)`
# - `padded_evaluation`: test images are padded

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
# !torchrun --nproc_per_node=2 scripts/broken/detective.py --out results/live/12_detective.json

# %% [markdown]
# ## Exercises
#
# 1. Which run has which mistake? Write a dict: `{"A": "set_epoch", …}`.

# %%
my_five = ...

check.five_runs(my_five)
# check.five_runs.hint()
# check.five_runs.solution()

# %% [markdown]
# 2. A job hangs. You have written down which collectives each rank calls, in order: `calls` is one list of names a rank. Return the number (from 0) of the first call that is not the same on all ranks, and
#    None if there is none. A rank may have fewer calls than another.

# %%
def my_hang(calls):
    raise NotImplementedError


check.hangs_at(my_hang)
# check.hangs_at.hint()
# check.hangs_at.solution()

# %% [markdown]
# 3. The evaluation is over, and it was padded. `hits` is one list of 0 and 1 a rank, in the order in which its `DistributedSampler(shuffle=False)` gave it the images; `images` is the size of the test set. Return the
#    exact accuracy.

# %%
def my_accuracy(hits, images):
    raise NotImplementedError


check.unpadded(my_accuracy)
# check.unpadded.hint()
# check.unpadded.solution()

# %% [markdown]
# ## What to remember
#
# - An error message is the lucky case. Print what silent mistakes would change: images counted, updates made, first indices, a norm of the weights on each rank.
# - One process on the whole batch is the judge: the same numbers, or a reason.
# - A hang: the stack of *each* rank. One stands at another line than the rest.
# - torchrun's last block, Root Cause, and `@record` on main: read these first.
#
# ## Where next
#
# - [TROUBLESHOOTING.md](../TROUBLESHOOTING.md) has all of it on one page. It is made from the same table, and this says whether it is up to date:

# %%
# !python scripts/broken/gallery.py guide --check

# %% [markdown]
# - `python scripts/broken/gallery.py run set_epoch` prints all that a broken script says. Change the script, and run it again.
# - [11 · Fault tolerance](11_fault_tolerance.ipynb): when nothing is wrong with the program, and still a rank dies.
