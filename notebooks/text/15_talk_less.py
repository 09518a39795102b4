# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         updates: 16
#         rounds: 1
#       seconds: 60
#     seconds: 160
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 15 · Communicate less
#
# **The question.** Two nodes train one language model, and the link between them is slow. How few bytes can they send,
# and what does it cost in what the model learns?
#
# **At its end** there are four files of yours, each a strategy of your `train_gpt.py`: gradients in 16 bits, an
# all-reduce that knows the nodes, local SGD, and DiLoCo. Two of them train within a budget of bytes that DDP breaks
# seven times over.
#
# **You need** DDP and its buckets ([06](06_ddp.ipynb)), the dial ([04](04_collectives.ipynb)) and sharding
# ([13](13_shard_kept.ipynb)).
#
# **Time.** About 80 minutes for you, 3 for the machine. After *Know the nodes* is a good place for a break.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

import torch

from course import dial
from lessons.l15_talk_less import check, record, show

os.environ |= {"OMP_NUM_THREADS": "1", "EVERY": "8"}  # EVERY: of local.py, below

# %% tags=["parameters"]
updates = 48  # of each training on the dial, a multiple of 8
rounds = 12  # of each strategy, where strategies are timed
rates = "20mbit 1gbit"  # between the nodes, where strategies are timed

# %% [markdown]
# ## A budget
#
# The dial makes two nodes of two ranks each. Within a node two ranks have 1 Gbit/s, and ranks on different nodes 20
# Mbit/s. `--count` tells what each connection has really carried. Your program trains a small GPT there: 119,424
# parameters in float32, so 0.48 MB of gradients. Each update has 512 tokens.
#
# **The budget: 0.2 MB between the nodes per update of 512 tokens.** The score is the val loss after the same number of
# tokens.
#
# **Predict.** All four ranks all-reduce 0.48 MB. How many MB go from node to node per update with DDP, both directions
# together?

# %%
my_ddp = None  # MB

# %%
why = dial.missing()  # None where this machine has a dial, else a line that says why not
run, folder = ("echo recorded:", "results/recorded/lessons") if why else ("", "results/live")
paced = f"{run} torchrun --nproc_per_node=4 -m course.dial --nodes 2x2 --rate 1gbit --between 20mbit"
gpt = f"mine/train_gpt.py --width 64 --layers 2 --batch 8 --updates {updates} --report {updates}"
# !{paced} --count {folder}/15_ddp.json {gpt} --parts torch

# %% jupyter={"source_hidden": true} tags=["hide-input"]
BUDGET, parameters = 0.2, 119_424
megabytes = show.read({"ddp": f"{folder}/15_ddp.json"})
lesson.predicted(my_ddp, megabytes["ddp"], "MB", what="MB of DDP between nodes")
show.links(f"{folder}/15_ddp.json")
lesson.figure("Counted: MB per update on each connection. gloo's all-reduce is a ring. Orange: between the nodes."
              + (" Recorded." if why else ""))
lesson.verdict(f"**{megabytes['ddp']:.2f} MB between the nodes per update: {megabytes['ddp'] / BUDGET:.0f} times the "
               "budget.**")

# %% [markdown]
# In a ring of four each rank sends 2 · 3/4 = 1.5 times the tensor to its neighbour ([04](04_collectives.ipynb)). Two of
# the four connections go from node to node. So three times the gradients cross the link.
#
# Three quantities can be made smaller: the bytes of each gradient, the times that it crosses the link, and how often
# the ranks communicate at all.
#
# ## Fewer bits: gradient compression
#
# A **communication hook** takes the place of DDP's all-reduce: `parallel.register_comm_hook(state, hook)`. As soon as
# a bucket's gradients are there, DDP calls `hook(state, bucket)`. `bucket.buffer()` is a flat tensor of them. The hook
# returns a **future**, a promise of a tensor. DDP puts that tensor into the parameters' `.grad`.
#
# Write a hook that sends each gradient in 16 bits. PyTorch has two types of 16 bits.

# %%
# %%mine hook.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def sixteen_bits(state, bucket):
    """bucket.buffer(): a flat tensor of gradients. Returns a future of their mean over the ranks."""
    raise NotImplementedError


def parallelize(model, make_optimizer):
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.register_comm_hook(None, sixteen_bits)
    return parallel, make_optimizer(model.parameters())


# %%
check.hook("mine/hook.py")
# check.hook.hint()
# check.hook.solution()

# %%
# !{paced} --count {folder}/15_hook.json {gpt} --strategy hook --parts {check.hook.parts}

# %% [markdown]
# Compare the val loss with that of DDP above: both have trained on the same tokens, from the same weights. PyTorch has
# this hook, too: `bf16_compress_hook`. How much time it saves follows below, together with the next strategy. Stronger
# compression exists: PowerSGD ([Vogels 2019](https://arxiv.org/abs/1905.13727)) sends two thin matrices for each large
# one, and adds what they leave out to the next gradient.
#
# ## Know the nodes
#
# The ring does not know which connections are slow. Write an all-reduce that does. Each rank is in the group `node`, of
# the ranks on its own node. The group `leaders` has the first rank of each node.
#
# - `dist.reduce(tensor, dst, group)` adds up the tensors of a group's ranks, on the rank `dst` of that group.
# - `dist.broadcast(tensor, src, group)` gives the tensor of `src` to all ranks of the group.
# - In both a rank is counted in the whole job. `dist.get_global_rank(group, 0)` is the first rank of a group.

# %%
# %%mine hierarchical.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS_PER_NODE = 2


def all_reduce(tensor, node, leaders):
    """The sum over all ranks, in place. node: the group of this rank's node; leaders: of the first rank of each."""
    raise NotImplementedError


def hook(groups, bucket):
    gradients, done = bucket.buffer(), torch.futures.Future()
    all_reduce(gradients, *groups)
    done.set_result(gradients.div_(dist.get_world_size()))
    return done


def parallelize(model, make_optimizer):
    node, _ = dist.new_subgroups(RANKS_PER_NODE)
    leaders = dist.new_group(range(0, dist.get_world_size(), RANKS_PER_NODE))
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.register_comm_hook((node, leaders), hook)
    return parallel, make_optimizer(model.parameters())


# %%
check.hierarchical("mine/hierarchical.py")
# check.hierarchical.hint()
# check.hierarchical.solution()

# %%
# !{paced} --count {folder}/15_hierarchical.json {gpt} --strategy hierarchical --parts {check.hierarchical.parts}

# %% [markdown]
# The library's own way to know the nodes is **hybrid sharding** (HSDP). The ranks of a node share one copy of the
# weights, as FSDP's do ([13](13_shard_kept.ipynb)), and each node has a copy of its own. Only the gradients of a
# rank's shard go to the other node. In PyTorch it is `fully_shard` with a mesh of two dimensions:

# %%
# !grep -A 9 "^def" lessons/start/pytorch/hsdp.py
# !{paced} --count {folder}/15_hsdp.json {gpt} --strategy hsdp --parts torch

# %% jupyter={"source_hidden": true} tags=["hide-input"]
megabytes |= show.read({each: f"{folder}/15_{each}.json" for each in ("hook", "hierarchical", "hsdp")})
lesson.table(show.bytes_table(megabytes, parameters))

# %% [markdown]
# With a hierarchy each node's sum crosses the link once in each direction: twice the gradients in place of three times.
# HSDP crosses it as often, on two connections at once. Each pair of ranks has 20 Mbit/s of its own here, so HSDP uses
# two links, and takes less time. Where the ranks of a node share one card, its bytes take as long as the hierarchy's.
# With R ranks per node a ring over two nodes sends 4 − 2/R times the gradients from node to node, and a hierarchy
# always twice.
#
# ### Where does it pay?
#
# DDP and your two strategies are timed in interleaved rounds, at two rates between the nodes.
#
# **Predict.** At which of the two rates is the hook in 16 bits significantly faster than DDP?

# %%
my_rates = None  # a list of "20mbit" and "1gbit"

# %%
mine = " ".join(each for each in ("hook", "hierarchical") if getattr(check, each).file)
# !{run} torchrun --nproc_per_node=4 lessons/l15_talk_less/speeds.py --between {rates} --rounds {rounds} \
#     --strategies ddp hook hierarchical --mine {mine} --out {folder}/15_speeds.json
speeds = json.loads(Path(f"{folder}/15_speeds.json").read_text())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.seconds(speeds, ["ddp", "hook", "hierarchical"])
lesson.figure("Medians. Each panel has a scale of its own." + (" Recorded." if why else ""))
lesson.predicted(my_rates, show.where_faster(speeds, "hook"), what="where 16 bits are faster")
lesson.table(show.claims(speeds, ["hook", "hierarchical"]))

# %% [markdown]
# **At 20 Mbit/s** the bytes take most of an update. The ring needs 1.5 · 0.48 MB · 8 / 20 Mbit/s = 0.29 s, a little
# less on the dial, which lets the last 64 KiB of a message through at once. Half the bytes take half of that. Between
# the leaders the whole tensor travels once: 0.19 s.
#
# **At 1 Gbit/s** the ring's bytes take 6 ms. Half of them save at most 3 ms: hardly worth a hook. The hierarchy loses:
# it sends the whole tensor three times, one after another, and 3 · 3.8 ms are more than 6. Fewer bytes pay where bytes
# take time.
#
# None of these strategies keeps the budget. **A good place for a break.**
#
# ## Less often: local SGD
#
# Between two messages each rank trains alone: a copy of its own, with its own AdamW. After every H **local steps** all
# ranks make their copies equal again, with one message. This is **local SGD** ([Stich
# 2018](https://arxiv.org/abs/1805.09767)). H is `EVERY` in the file, 8 in this lesson.
#
# `step()` is called once per update, by your program. `self.inner` is this rank's AdamW. Write `step()`, and `agree()`,
# the message. `parameters_to_vector` makes one tensor of all weights, and `vector_to_parameters` puts it back.

# %%
# %%mine local.py
import os

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

EVERY = int(os.environ.get("EVERY", "8"))  # updates between two messages


class Local(torch.optim.Optimizer):
    def __init__(self, inner, model, every=EVERY):
        super().__init__(model.parameters(), {})
        self.inner, self.model, self.every, self.updates = inner, model, every, 0

    @torch.no_grad()
    def step(self):
        raise NotImplementedError

    def agree(self):
        raise NotImplementedError


def parallelize(model, make_optimizer):
    return model, Local(make_optimizer(model.parameters()), model)


# %%
check.local("mine/local.py")
# check.local.hint()
# check.local.solution()

# %%
# !{paced} --count {folder}/15_local.json {gpt} --strategy local --parts {check.local.parts}
mine = "local" if check.local.file else ""
# !{run} torchrun --nproc_per_node=4 lessons/l15_talk_less/speeds.py --between {rates} --rounds {rounds} \
#     --strategies ddp local --mine {mine} --out {folder}/15_seldom.json
seldom = json.loads(Path(f"{folder}/15_seldom.json").read_text())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
megabytes |= show.read({"local": f"{folder}/15_local.json"})
show.budget(megabytes, BUDGET, 8)
lesson.figure("Counted between the nodes, per update." + (" Recorded." if why else ""))
lesson.table(show.claims(seldom, ["local"]))

# %% [markdown]
# Local SGD sends the bytes of DDP once in 8 updates. **It keeps the budget.** But it trains another model: between two
# messages the copies part, and a mean of weights is not what one process would have. How much does it lose?
#
# ## DiLoCo: one line
#
# First, write the same thing in another form. `agreed` are the weights that all ranks had last. `outer` is an optimizer
# of `agreed`: SGD with rate 1, no momentum. Its step must arrive at the mean of the ranks' weights. Which gradient must
# it get?
#
# `agreed` is one flat tensor, so it has one `.grad`. Then put the new weights into the model.

# %%
# %%mine diloco.py
import torch
import torch.distributed as dist
from local import Local
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class DiLoCo(Local):
    def __init__(self, inner, model, *options):
        super().__init__(inner, model, *options)
        self.agreed = parameters_to_vector(model.parameters()).detach()  # a copy
        self.outer = self.make_outer()

    def make_outer(self):
        return torch.optim.SGD([self.agreed], lr=1.0)

    def agree(self):
        raise NotImplementedError


def parallelize(model, make_optimizer):
    return model, DiLoCo(make_optimizer(model.parameters()), model)


# %%
check.outer("mine/diloco.py")
# check.outer.hint()
# check.outer.solution()

# %%
difference = check.same_as_local_sgd(ranks=4)
lesson.verdict(f"On four ranks in float64, outer rate 1 and no momentum: the largest difference from local SGD in any "
               f"weight is {lesson.small(difference)} of the largest weight.")


# %% [markdown]
# **Local SGD is outer SGD with rate 1.** The gradient that you found is called the **pseudo-gradient**. Any optimizer
# can use it as a gradient: AdamW is the **inner**, SGD the **outer** optimizer. DiLoCo ([Douillard
# 2023](https://arxiv.org/abs/2311.08105)) changes one line:

# %%
# %%mine diloco.py DiLoCo
def make_outer(self):
    return torch.optim.SGD([self.agreed], lr=0.7, momentum=0.9, nesterov=True)


# %% [markdown]
# **Predict.** The ranks learn the same in every round, so the pseudo-gradient stays the same. After many rounds, how
# many times as long is DiLoCo's outer step as that of local SGD?

# %%
my_times = None  # times

# %%
weight = torch.zeros(1)
outer = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
for _ in range(100):
    before, weight.grad = weight.clone(), torch.ones(1)  # local SGD would step by 1
    outer.step()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_times, (before - weight).item(), "times", what="length of DiLoCo's step")
show.walks()
lesson.figure("Three outer steps of a real training, in the plane in which its weights move most. The four ranks train "
              "alone for 8 updates each; the circle is their mean, where local SGD would go on. The outer step goes "
              "further, because it keeps the momentum of the outer steps before it. Outer rate 0.7, not tuned: here it "
              "goes too far.")

# %%
# !{paced} --count {folder}/15_diloco.json {gpt} --strategy diloco --parts {check.outer.parts}

# %% [markdown]
# The val loss is worse than that of local SGD: the first steps are too long. These are six outer steps. They show that
# the program runs, and how many bytes it sends. They do not show what DiLoCo learns: its momentum needs tens of outer
# steps.
#
# ## What is learned
#
# So here is a **recorded** run of 800 updates: 100 outer steps, three random seeds, the same crops for all strategies.
# The learning rates are **tuned**, by the val loss of seed 0: for DiLoCo first at the outer rate 0.7, then the outer
# rate. Its momentum stays 0.9. A comparison at one learning rate would favour the
# strategy that it suits. `lessons/l15_talk_less/record.py` made it. Four ranks take turns in one process there, which
# trains the same weights as four processes.
#
# Beside them stands the plain way to send seldom: **DDP with a batch 8 times as large**, one update in the place of 8,
# its learning rate tuned, too.
#
# **Predict.** Three of these keep the budget of 0.2 MB per 512 tokens. Which of the three has the lowest val loss, by
# the median of the seeds?

# %%
my_lowest = None  # "local", "diloco" or "large"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
megabytes |= show.read({"diloco": f"{folder}/15_diloco.json"})
megabytes["large"] = megabytes["ddp"] / record.LARGE  # one all-reduce for so many batches
lines = show.recording()
best = show.lowest([line for line in lines if line["strategy"] != "ddp"])
lesson.predicted(my_lowest, best, what="lowest val loss")
show.curves(lines, megabytes, "tokens")
lesson.figure("Recorded. Val loss against tokens: the medians of the seeds, and a band from the lowest to the highest.")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.curves(lines, megabytes, "bytes")
lesson.figure("The same trainings against the bytes between the nodes: those of the dial's count above, per update, "
              "times the updates.")
lesson.table(show.learned(lines, megabytes, BUDGET))
lesson.verdict(show.summary(lines, megabytes))

# %% [markdown]
# Read the two pictures together. Per token, communicating less often learns less: between two messages each rank
# follows its own crops. Per byte, it learns more. Which picture counts depends on what is scarce on your cluster, data
# or the link. Three seeds give no interval by the rule of lesson [01](01_measure.ipynb); the pictures show all of them.
#
# **DiLoCo loses here.** Momentum 0.9 averages about 10 outer steps, a tenth of this whole training. Its paper trained
# models a thousand times as large, with H = 500, and found this outer optimizer the best of those that it compared.
# Whether it is the best for your model is a measurement, too.
#
# **The levers multiply.** Gradients in 16 bits with H = 4 send 1.5 · 0.48 / 4 = 0.18 MB per update, and keep the budget
# as well.
#
# **What the ranks do not share.** Each rank's AdamW keeps moments of its own, from its own crops. DiLoCo leaves them
# where they are: to send them, too, would make a message three times as long. A checkpoint must then hold the optimizer
# of each rank.
#
# ## Today's field
#
# - **DiLoCo's scaling laws** ([Charles 2025](https://arxiv.org/abs/2503.09799)): how rates and batch change with size,
#   for models of 35 million to 2.4 billion parameters.
# - **Streaming DiLoCo** ([Douillard 2025](https://arxiv.org/abs/2501.18512)): the pseudo-gradient travels in fragments,
#   one after another, while the ranks go on training. It is sent in 4 bits, and added up in 32.
# - **torchft** has [`LocalSGD` and `DiLoCo`](https://docs.pytorch.org/torchft/local_sgd.html), for nodes that may fail.
# - **HSDP** is [`fully_shard`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) with a mesh of
#   two dimensions.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Bytes cost time only where the link is slow. Count them on the slow connections, and measure at your rate.
# 2. Add up within each node first: then each node sends one sum over the slow link. It trains the same model.
# 3. Communicating less often saves the most, and trains another model: compare tuned rates, after the same tokens.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.verdict(f"**DDP: {megabytes['ddp']:.2f} MB between the nodes per 512 tokens. With {show.WORDS[best]}, the best within "
               f"the budget: {megabytes[best]:.2f} MB.**")

# %% [markdown]
# **Next:** [16 · A language model](16_language_model.ipynb). Now you decide everything.
