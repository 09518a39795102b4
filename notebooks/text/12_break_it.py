# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         many: 16
#         until: 1
#       seconds: 70
#     seconds: 180
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Break it
#
# **The question.** A run with several processes fails, hangs, or gives a wrong number without a warning. How do you
# find the cause?
#
# **You will be able to**
# - go from a symptom to a suspect, and from a suspect to the one measurement that decides;
# - write functions that name the rank for which all others wait: from four stacks, and from 64 flight recorders;
# - find mistakes that print no error;
# - repair a script with several mistakes, and write an instrument for the next one.
#
# **You need** the collectives and their stacks ([04](04_collectives.ipynb)), [05 ·
# DistributedSampler](05_distributed_sampler.ipynb), [06 · DDP](06_ddp.ipynb), and how ranks are started
# ([10](10_launchers.ipynb)). No GPU.
#
# **Time.** About 80 minutes for you, 3 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import pickle
from pathlib import Path

from torch.utils.data import DistributedSampler

from gallery import table as gallery_table
from lessons.l12_break_it import check, hang, show

# %% tags=["parameters"]
until = 8  # patients that come today, 1 to 8
many = 64  # ranks of the large job, a multiple of 8

# %% [markdown]
# ## The clinic
#
# Eight patients come, one after the other. Each is a real script of a few lines, `train.py`, in which one thing is
# wrong. For each patient you
#
# 1. read the **script**, and see the **symptom**, as its user sees it;
# 2. **guess** the cause, from the table of suspects below;
# 3. run the **diagnosis**: a measurement that decides. (`python -m gallery look N PATTERN` shows the lines of patient
#    N's output that match the pattern, as `grep -E` does.)
# 4. see the **repair**, the smallest difference that helps, and run it as the **proof**.
#
# Each suspect links to its entry in [TROUBLESHOOTING.md](../TROUBLESHOOTING.md). Open the entries when you are in
# doubt, as you would at work. But guess before you run the diagnosis: you remember the wrong guess that you corrected.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
page = "../TROUBLESHOOTING.md"
patients = gallery_table.read_patients()
links = [f"[{entry.heading}]({page}#{entry.anchor})"
         for entry in gallery_table.read_table().values()]
height = -(-len(links) // 3)  # three columns, read downwards
links += [""] * (3 * height - len(links))
lesson.table([{"suspects": links[row], " ": links[row + height], "  ": links[row + 2 * height]}
              for row in range(height)])

# %% [markdown]
# ## Patient 1
#
# A Slurm job runs two tasks on one machine. Here they are started with the variables that Slurm would set. (`&`: the
# first task runs beside the second. The rest of the line waits for both.) The first patient is an easy one.

# %%
# !python -m gallery patient 1 --until {until}

# %% [markdown]
# **Guess.** Write the suspect's number, as text.

# %%
my_guess_1 = None  # a number of the table, such as "9a"

# %% [markdown]
# **Diagnosis.** Each task prints where it expects to meet the others:

# %%
# !python -m gallery look 1 "^task" --until {until}
lesson.predicted(my_guess_1, patients[1].number)

# %%
# !python -m gallery repair 1 --until {until}

# %% [markdown]
# Processes meet at **one** address and port, which all of them must be told (lesson
# [03](03_processes_and_ranks.ipynb)). torchrun tells the ranks of a node. Between nodes, and with `srun`, you must tell
# them.
#
# ## Patient 2
#
# Below is rank 0's message. Rank 1 prints the same, and torchrun adds a report of its own.

# %%
# !python -m gallery patient 2 --until {until}

# %%
my_guess_2 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** The message speaks of the step *before*: its reduction was not finished. One variable makes PyTorch
# name the missing gradients:

# %%
# !TORCH_DISTRIBUTED_DEBUG=INFO python -m gallery patient 2 \
#     --lines "did not receive grad" --until {until}
lesson.predicted(my_guess_2, patients[2].number)

# %%
# !python -m gallery repair 2 --until {until}

# %% [markdown]
# DDP starts the all-reduce of a bucket when all its gradients are there. One gradient that never comes keeps the bucket
# waiting, and DDP copies the averages back only when the last bucket is done. So an `optimizer.step()` now would use
# each rank's own gradients. The next `forward` notices this. Without DDP the same model trains with no error: there
# `parameter.grad is None` after `backward()` finds the parameter. The message names a cure,
# `find_unused_parameters=True`, which searches the graph in each step. It is for parameters that are used in some steps
# and not in others. Here it would only hide a layer that nobody uses.
#
# ## Patient 3
#
# "Nothing is printed. Then, after the timeout, this." (The timeout is 6 seconds here. The default of gloo is 30
# minutes: lesson [03](03_processes_and_ranks.ipynb).)

# %%
# !python -m gallery patient 3 --until {until}

# %% [markdown]
# The message of a timeout says that a rank waited, not why. At least three suspects look like this.

# %%
my_guess_3 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Look at the stack of **each** rank. The script asked Python for its stack, by
# `faulthandler.dump_traceback_later(3)`. For a process that already hangs, `py-spy dump --pid PID` does the same from
# outside. Each rank's line is there twice: once from faulthandler, without the rank's number, and once from the
# error after the timeout, with its number. Which line of the script is rank 0 in, and which is rank 1 in?

# %%
# !python -m gallery look 3 "File .train.py" --until {until}

# %% [markdown]
# Which hang is it? Find its row:

# %%
lesson.table(gallery_table.hangs(page))

# %%
lesson.predicted(my_guess_3, patients[3].number)
# !python -m gallery repair 3 --until {until}

# %% [markdown]
# The block `if rank == 0` is for printing and writing. A collective inside it waits for ranks that never call it. Some
# collectives are hidden: those of `SyncBatchNorm`, and that in the `forward` of a DDP model with buffers (as BatchNorm
# has), when rank 0 evaluates alone. With NCCL (not run here) `barrier()` is itself an all-reduce of one number. Then
# rank 1's barrier answers rank 0's all-reduce. Rank 0 goes on with a wrong number, and hangs later, at its own
# `barrier()`: a line in which nothing is wrong.
#
# ## Who holds up four ranks?
#
# You can read two stacks. A job of a thousand ranks has a thousand, and needs a function that reads them. Write it, for
# a program whose ranks hang on purpose. Four ranks run this `train`. One of them, the culprit, gets a `fault` and does
# something else in the fourth step. The rank and the fault are drawn anew in each run:

# %%
lesson.code(hang.load_batch, hang.pack, hang.all_reduce_gradients, hang.log_loss, hang.train)

# %%
# !python lessons/l12_break_it/hang.py results/live/12_stacks
stacks = {rank: Path(f"results/live/12_stacks/{rank}.txt").read_text() for rank in range(4)}
for rank, stack in stacks.items():
    print(f"rank {rank}:", *stack.splitlines()[:6], sep="\n")


# %% [markdown]
# The innermost call stands first.
#
# ### Exercise 1: the culprit, from four stacks
#
# Write `my_culprit(stacks)`. It gets a dict with the text of each rank's stack. It returns the culprit and the
# collective in which the others wait for it, such as `(2, "all_reduce")`. The check tries it on five hangs that were
# recorded with this program, with other ranks and other faults. Your function sees only the texts.

# %%
def my_culprit(stacks):
    raise NotImplementedError


# %%
check.stacks(my_culprit)
# check.stacks.hint()
# check.stacks.solution()

# %% [markdown]
# Now try the hang of your own machine, whose culprit the check does not know:

# %%
function, whose = check.stacks.or_ours(my_culprit)
lesson.table(show.named(whose, function(stacks), "results/live/12_stacks"))

# %% [markdown]
# All ranks but one say *I wait*. None of them can say for whom, because each knows only its own calls. Only the
# comparison names the culprit, so you need the stacks of **all** ranks. A missing stack is a finding, too.
#
# ## Who holds up 64?
#
# With NCCL a stack may not help: a call only queues the work, and Python is already some lines further. PyTorch's
# **flight recorder** keeps the last 2,000 collectives that a rank has called. When a
# collective times out each rank writes its record to a file (older versions: only with `TORCH_NCCL_DUMP_ON_TIMEOUT=1`)
# ([how](../TROUBLESHOOTING.md#a-hang-under-nccl-the-flight-recorder)). gloo has the recorder, too, so 64 ranks on this
# machine can write theirs. They play 8 nodes of 8 ranks. The ranks of each node add up their gradients, then the nodes'
# leaders add up these sums, and each leader sends the total to its node: three collectives a step, in two groups.

# %%
lesson.code(hang.train_by_node)

# %%
# !python lessons/l12_break_it/hang.py results/live/12_dumps --ranks {many}
dumps = {rank: pickle.loads(Path(f"results/live/12_dumps/rank_{rank}").read_bytes())
         for rank in range(many)}
last = {name: value for name, value in dumps[0]["entries"][-1].items() if name != "frames"}
dumps[0]["pg_config"], last

# %% [markdown]
# `process_group` has the name and the description of the group, and `collective_seq_id` is the number of the call in
# this group. `retired` says whether the call is done. (gloo's `state` stays at `scheduled`. NCCL's goes on, to
# `started` and `completed`: [source](https://github.com/pytorch/pytorch/pull/189363).) `pg_config` lists the members of
# a rank's groups.
#
# PyTorch's program `torchfrtrace` compares the dumps. **Predict:** a group waits because one of its members has not
# called. How many such gaps does it report?

# %%
my_missing = None  # a number

# %%
report = get_ipython().getoutput("torchfrtrace --prefix rank_ results/live/12_dumps 2>&1")
missing = show.missing(report)
lesson.predicted(my_missing, len(missing))
print(missing)


# %% [markdown]
# Each line is true, and most lines do not help. A rank that is missing in one group may itself wait in another group,
# for a rank that waits for a third. At the end of this chain stands a rank that waits for nobody.
#
# ### Exercise 2: the culprit, from 64 dumps
#
# Write `my_culprit_of_many(dumps)`. It gets a dict with the dump of each rank. It returns the culprit, the description
# of the group, and the number of the collective in which the culprit is missing, such as `(13, "node 1", 7)`. There are
# two faults: the culprit stops before a collective, or it calls another collective than its node, under the same
# number. (The chain above ends at the culprit.) The check tries your function on four hangs, of 64 and of 48 ranks. (No
# run made these dumps: a few lines of Python play the ranks and write their records in the [documented
# format](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html). In three of the hangs a recorder
# keeps only 16 calls of each rank.)

# %%
def my_culprit_of_many(dumps):
    raise NotImplementedError


# %%
check.dumps(my_culprit_of_many)
# check.dumps.hint()
# check.dumps.solution()

# %% [markdown]
# Back to the dumps of this machine's ranks:

# %%
function, whose = check.dumps.or_ours(my_culprit_of_many)
answer = function(dumps)
lesson.table(show.named(whose, answer, "results/live/12_dumps"))
show.waiting(dumps, hang.PER_NODE, whose, answer[0])
lesson.figure("A square is a rank, a row a node. The colour is the collective in which "
              "the rank waits. One row differs from the others, and in it the framed "
              "rank, the culprit.")

# %% [markdown]
# Follow the chain from a green square. A rank waits for its leader, which has not sent. This leader waits for one other
# leader, and that one waits for one rank of its node. On a real cluster you would now look at this rank's machine: its
# stack, its disk, its GPU.
#
# ## Patient 4
#
# From here on no patient prints an error: the exit status is 0, and the result is wrong. The user says: "The loss goes
# up and down at the same places in each epoch, although I shuffle."

# %%
# !python -m gallery patient 4 --until {until}

# %%
my_guess_4 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** The script also prints the images that rank 0 takes, epoch by epoch:

# %%
# !python -m gallery look 4 "rank 0 sees" --until {until}

# %%
lesson.predicted(my_guess_4, patients[4].number)
# !python -m gallery repair 4 --until {until}

# %% [markdown]
# `DistributedSampler` shuffles by `seed + epoch`, and does not count epochs itself. So rank 0 also sees the same half
# of the images in every epoch. These are the losses of both scripts:

# %%
show.rhythm({
    "Nobody calls set_epoch": show.losses("broken"),
    "set_epoch before each epoch": show.losses("repaired"),
})
lesson.figure("A point is a batch. Without set_epoch each epoch has the same batches in "
              "the same order, and the loss has a rhythm. If you see one, print the "
              "order.")

# %% [markdown]
# ## Patient 5
#
# "The same weights, the same test set. With one process I get one accuracy, with two ranks another."

# %%
# !python -m gallery patient 5 --until {until}

# %%
my_guess_5 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Which images does the script's sampler give to each rank? (A sampler with `num_replicas` and `rank`
# needs no other process.)

# %%
[list(DistributedSampler(range(9), num_replicas=2, rank=rank, shuffle=False)) for rank in range(2)]

# %%
lesson.predicted(my_guess_5, patients[5].number)
# !python -m gallery repair 5 --until {until}

# %% [markdown]
# One image counts twice, so that the shards are equally long. In training this does little harm. An evaluation must
# count each image once. Then the shards may differ in length, so evaluate with `model.module`: the `forward` of a DDP
# model may wait for the other ranks.
#
# ## Patient 6
#
# "I use DDP, and after a few updates my ranks have different weights." (The norm, the root of the sum of the squared
# weights, sums them up in one number. Equal weights have equal norms.)

# %%
# !python -m gallery patient 6 --until {until}

# %% [markdown]
# Two suspects fit: the weights were different from the start, or the gradients are not averaged.

# %%
my_guess_6 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Look at the weights *before* the first update, and count the all-reduces. (The script counts them with
# a communication hook, `model.register_comm_hook`.)

# %%
# !python -m gallery look 6 "after 0|all-reduces" --until {until}
lesson.predicted(my_guess_6, patients[6].number)

# %%
# !python -m gallery repair 6 --until {until}

# %% [markdown]
# It is DDP's `forward` that prepares the all-reduce. `model.module` is the model without DDP: for saving and for
# evaluation.
#
# ## Patient 7
#
# "The loss that my run prints is far better than what one process finds."

# %%
# !python -m gallery patient 7 --until {until}

# %%
my_guess_7 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** Let **each** rank print its loss, and its number of images:

# %%
# !python -m gallery look 7 "^rank" --until {until}
lesson.predicted(my_guess_7, patients[7].number)

# %%
# !python -m gallery repair 7 --until {until}

# %% [markdown]
# Rank 0 prints the loss of its own shard. Add up sums and counts over the ranks, and divide last.
#
# ## Patient 8
#
# "Each image should get noise of its own. With two ranks half of the noise seems to be missing."

# %%
# !python -m gallery patient 8 --until {until}

# %%
my_guess_8 = None  # a number of the table, as text

# %% [markdown]
# **Diagnosis.** A few random numbers of each rank, side by side:

# %%
# !python -m gallery look 8 "^rank" --until {until}
lesson.predicted(my_guess_8, patients[8].number)

# %%
# !python -m gallery repair 8 --until {until}

# %% [markdown]
# Use one seed for the model, so that all ranks begin with the same weights, and then another seed for each rank.
# Dropout draws from this seed, too.
#
# ## A program that examines
#
# For your own script nobody chooses the measurement. `doctor` runs a script as it is, and records on each rank the
# calls of torch's public functions: forwards of a model, backwards, batches of a `DataLoader`, collectives,
# `torch.save` and `torch.load`. At the end it compares the ranks. It does not read the source.
#
# Now it gets the scripts of patients 6 (`model.module` in place of `model`) and 8 (`torch.randn` for the noise).
# **Predict:** in which of them does it find the mistake? (`grep` shows the report. After a finding the doctor ends with
# an error status on purpose, so torchrun adds *doctor FAILED*.)

# %%
my_found = None  # a list: [], [6], [8] or [6, 8]

# %%
doctor = "torchrun --nproc_per_node=2 -m doctor"
# !{doctor} --json results/live/12_6.json gallery/ddp_module.py 2>&1 | grep -A3 "^doctor"

# %%
# !{doctor} --json results/live/12_8.json gallery/same_seed.py 2>&1 | grep -A5 "^doctor"
said = {patient: Path(f"results/live/12_{patient}.json").read_text() for patient in (6, 8)}
lesson.predicted(my_found, [patient for patient in said if json.loads(said[patient])["findings"]])

# %% [markdown]
# The doctor sees that the inner model was called, and that the weights differ. It does not see `torch.randn`. So
# *nothing found* does not mean *nothing wrong*: read the list of what was not judged, and measure the rest yourself.
#
# Some mistakes show only on many ranks, after a day in the queue. With `--pretend 128x8` the doctor runs five of 1,024
# ranks on this CPU, one after the other, and sends nothing. `main.py --global-batch-size 512` is right on 2 ranks and on
# 512. **Predict:** what goes wrong on 1,024?

# %%
# !python -m doctor --pretend 128x8 main.py --dataset synthetic \
#     --global-batch-size 512 --epochs 1 2>&1 | grep -E -A4 "^doctor|error:"

# %% [markdown]
# 512 images cannot be shared by 1,024 ranks. `main.py` refuses. A script that computes `512 // world_size` would get a
# batch of 0. Two ranks would never have shown it.
#
# When you suspect a script of yours, begin with `--steps 50`, and then let it run once to its end: a forgotten
# `set_epoch`, the evaluation and the files show only there. The [README](../README.md#the-doctor) says how to take the
# doctor to a cluster. Each entry of TROUBLESHOOTING.md says whether the doctor finds its mistake.
#
# ## The other suspects
#
# `python -m gallery show NAME` runs one of the others: symptom, diagnosis, repair and proof (`… list` has the names).
# You are likely to meet three more:
#
# - A job of many ranks fails, and the console is full. Begin at torchrun's last block, **Root Cause**: the rank that
#   failed first ([22](../TROUBLESHOOTING.md#22-the-wrong-traceback)).
# - `nvidia-smi` lists all processes at GPU 0 ([11a](../TROUBLESHOOTING.md#11a-every-process-on-gpu-0)).
# - One process, DDP, eight GPUs, and seven are idle ([29](../TROUBLESHOOTING.md#29-one-process-and-ddp-on-many-gpus)).
#
# ## Exercises
#
# ### Exercise 3: a patient with three mistakes
#
# The patient hangs, and has two more mistakes. Delete the line `raise`, and run the cell and the next one: the check
# runs your file on three ranks, and reports what it sees. Repair one mistake after the other. On rank 0 `train` returns
# the loss of each epoch over all images.

# %%
# %%writefile results/live/12_train.py
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

def train(ddp, optimizer, images, labels, epochs):
    raise NotImplementedError
    sampler, means = DistributedSampler(images, shuffle=True), []
    for epoch in range(epochs):
        sums = torch.zeros(2)
        for batch in torch.tensor(list(sampler)).split(4):
            loss = cross_entropy(ddp.module(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(batch), len(batch)])
        if dist.get_rank() == 0:
            dist.all_reduce(sums)
            means.append((sums[0] / sums[1]).item())
    return means


# %%
check.repaired("results/live/12_train.py")
# check.repaired.hint()
# check.repaired.solution()

# %% [markdown]
# ### Exercise 4: an instrument
#
# Write a function that every rank calls with its own model. On **every** rank it returns the names of the parameters
# (`model.named_parameters()`) that are not the same on all ranks, or `[]`. It does not change the model.

# %%
# %%writefile results/live/12_drifted.py
import torch.distributed as dist

def drifted(model):
    raise NotImplementedError


# %%
check.instrument("results/live/12_drifted.py")
# check.instrument.hint()
# check.instrument.solution()

# %% [markdown]
# ## What to remember
#
# 1. An error message is the lucky case. Print, on **each** rank, the numbers that silent mistakes change: images
#    counted, updates made, first indices, random numbers, a norm of the weights.
# 2. In a hang, compare the stack or the flight recorder of **each** rank. The others wait for the culprit, and the
#    culprit waits for nobody.
# 3. Compare with one process on the whole batch: the numbers must agree, or you must know why they do not.
#
# **Next:** [13 · Beyond DDP](13_beyond_ddp.ipynb). Each rank holds the whole model. What if it does not fit?
