# ---
# jupyter:
#   course:
#     minutes: 20
#     quick:
#       parameters:
#         updates: 2
#       seconds: 12
#     seconds: 15
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · DataParallel
#
# **The question.** `nn.DataParallel` trains with several GPUs in one process, and costs you one line. What does that
# line do in each step, and why does PyTorch advise against it?
#
# **At the end** you have written its whole step by hand. You have shown that it computes the gradients of one device,
# and counted the bytes that it moves.
#
# **You need** [00 · Start here](00_start_here.ipynb). No GPU.
#
# **Time.** About 20 minutes for you, 1 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import copy
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel.scatter_gather import scatter

from course import one_process
from lessons.l02_data_parallel import check, show
from trainer.data import get_dataset

torch.set_num_threads(1)  # as in your program

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
devices = 4  # at least 2
updates = 6  # of the training that is compared

# %% [markdown]
# ## The four steps, by hand
#
# A **replica** is a copy of the model on one device. This is one training step of four devices with 64 rows:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.steps(devices, rows=64)
lesson.figure("Read from left to right. The blue columns are DataParallel's forward, which ends where it began: on "
              "device 0. In five of the nine columns device 0 works alone, and the others wait. The widths say nothing "
              "about time.")


# %% [markdown]
# Here are the same four steps without devices. This model prints the shape of what it gets and of what it returns, as
# tutorials do.

# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 20))

    def forward(self, rows):
        scores = self.layers(rows)
        print(f"inside:  {list(rows.shape)} to {list(scores.shape)}, on {rows.device}")
        return scores


torch.manual_seed(0)
model, batch, labels = Net(), torch.randn(64, 40), torch.randint(20, (64,))
pieces = batch.chunk(devices)  # 1. scatter
replicas = [copy.deepcopy(model) for _ in pieces]  # 2. replicate, in every step anew
outputs = [replica(piece) for replica, piece in zip(replicas, pieces, strict=True)]  # 3. apply, on GPUs in parallel
scores = torch.cat(outputs)  # 4. gather
print(f"outside: {list(batch.shape)} to {list(scores.shape)}")

# %% [markdown]
# Your code outside sees one batch and one output. The model inside sees a part of the batch.
#
# **Predict.** A batch of 5 rows on 4 devices: which device gets how many?

# %%
my_pieces = None  # rows on each device, in a list such as [5, 0, 0, 0]

# %%
rows = []
for size in (64, 10, 5, 3, 1):
    sizes = [len(piece) for piece in torch.empty(size, 40).chunk(4)]
    rows.append({"batch": size, "rows on each of 4 devices": sizes + [0] * (4 - len(sizes))})
lesson.predicted(my_pieces, rows[2]["rows on each of 4 devices"], what="rows on each device")
lesson.table(rows)


# %% [markdown]
# `chunk` rounds the size of a piece **up**. PyTorch's [tutorial][tutorial] shows the same on GPUs: of 10 rows on 8
# GPUs, five GPUs get 2 rows each, and three get none.
#
# [tutorial]: https://docs.pytorch.org/tutorials/beginner/blitz/data_parallel_tutorial.html
#
# ### Exercise: the whole step
#
# The forward half stands above. Write the whole step: cut, copy, compute, and leave the gradient of the whole batch in
# the `.grad` of `model`'s weights. Return the loss, the mean cross-entropy of the batch. Only the copies may compute,
# each its own piece. `backward()` leaves the gradients in the copies, and you bring them back.

# %%
def my_step(model, batch, labels, devices):
    raise NotImplementedError


# %%
check.step(my_step)
# check.step.hint()
# check.step.solution()

# %% [markdown]
# Does it train what one device trains? The next cells train the model of your program on its images, in float64: once
# with your step, and once with a usual one. Four devices cannot share the 62 images of an update evenly. Until your
# step is right, the course's stands in its place.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
def program_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))


train_set, _ = get_dataset("auto", verify=False)
images, answers = train_set.images[:62 * updates].double() / 127.5 - 1, train_set.labels[:62 * updates]


# %%
def usual_step(model, batch, labels, devices):
    loss = cross_entropy(model(batch), labels)
    loss.backward()
    return loss


def trained_with(step):
    """The gradients and weights of each update."""
    network = program_model().double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    named = dict(network.named_parameters())
    record = one_process.Record({name: weight.detach().clone() for name, weight in named.items()}, [], [], [], [])
    for some_images, some_answers in zip(images.split(62), answers.split(62), strict=True):
        optimizer.zero_grad()
        step(network, some_images, some_answers, devices)
        record.gradients.append({name: weight.grad.clone() for name, weight in named.items()})
        optimizer.step()
        record.weights.append({name: weight.detach().clone() for name, weight in named.items()})
    return record


function, whose = check.step.or_ours(my_step)
where = one_process.parting(trained_with(usual_step), trained_with(function))
print(f"{whose} step on {devices} devices, {updates} updates:",
      f"they part {where}" if where else f"the gradients and weights of one device, to a relative {one_process.NEAR:.0e}")

# %% [markdown]
# ## A model that counts
#
# This model counts the calls of its `forward`.
#
# **Predict.** What is `counting.calls` after one step on 4 devices?

# %%
my_calls = None  # a whole number


# %%
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.layer = 0, nn.Linear(40, 20)

    def forward(self, rows):
        self.calls += 1
        return self.layer(rows)


counting = Counting()
function(counting, batch, labels, 4)
lesson.predicted(my_calls, counting.calls, what="calls counted")

# %% [markdown]
# **A replica lives for one step.** Each one counted its own call, and was thrown away. `DataParallel` makes an
# exception for buffers: device 0 works on the model's own, so BatchNorm's running mean is that of device 0's rows alone.
# The [manual][manual] says both. Each replica also normalises by its own rows, so with BatchNorm the training is not that
# of one device.
#
# ## What it costs
#
# These bytes cross from one device to another in one step of your program, with 192 images in float32 on 4 devices.
# DDP, which you build in lesson [06](06_ddp.ipynb), is one process per device: each reads its own images, keeps its
# model, and adds up gradients with the others. Lesson [04](04_collectives.ipynb) counts its messages.

# %%
network = program_model()
weights = sum(weight.nbytes for weight in network.parameters())
parts = torch.empty(192, 3, 32, 32).chunk(devices)
results = [network(part) for part in parts]
others = devices - 1  # all but device 0
moved = [("1. scatter: the images", sum(part.nbytes for part in parts[1:]), 0, "before forward"),
         ("2. replicate: the weights", others * weights, 0, "before forward"),
         ("4. gather: the outputs", sum(result.nbytes for result in results[1:]), 0, "after forward"),
         ("gradients of the outputs", sum(result.nbytes for result in results[1:]), 0, "before backward"),
         ("gradients of the weights", others * weights, 2 * others * weights, "after backward; DDP: during backward")]
moved.append(("together", sum(row[1] for row in moved), sum(row[2] for row in moved), ""))
lesson.table([{"what": what, "DataParallel, MB": f"{ours / 1e6:.3f}", "DDP, MB": f"{ddp / 1e6:.3f}", "when": when}
              for what, ours, ddp, when in moved])

# %% [markdown]
# For weights and gradients together both send the same bytes. The difference is *when* and *where*:
#
# - **Nothing overlaps.** `DataParallel` copies all weights before the first layer computes. Their gradients return when
#   the last of them is there, because the copy is one operation for autograd. DDP sends while backward goes on.
# - **Device 0 is an end of every transfer.** It alone holds the outputs of all rows, the loss and the optimizer's state,
#   so it is the first to run out of memory. Meanwhile the others wait.
# - **One Python.** Its threads share one interpreter lock, so a model of many small operations keeps the GPUs waiting.
#
# PyTorch's [DDP tutorial][ddp-tutorial] gives the same reasons: the lock, the copies in each step, scatter and gather.
# The [manual][manual] recommends DDP "even if there is only a single node", and the [overview of PyTorch
# Distributed](https://github.com/pytorch/tutorials/pull/2913) has left `DataParallel` out since 2024.
#
# A published measurement: 200 steps of GPT-2 on two TITAN RTX, joined by NVLink, took 110.6 s with `DataParallel` and
# 101.9 s with DDP. It is one run of each
# ([Hugging Face](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many)).
#
# [manual]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
# [ddp-tutorial]: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
#
# ## `nn.DataParallel` itself
#
# This is PyTorch's own `forward`. You know the four names.

# %%
lesson.code(nn.DataParallel.forward)

# %%
gpus = torch.cuda.device_count()
if gpus >= 2:
    wrapped = nn.DataParallel(copy.deepcopy(model).to("cuda:0"), device_ids=[0, 1])
    scores = wrapped(batch)
    print(f"outside: {list(batch.shape)} to {list(scores.shape)}, on {scores.device}")
    torch.testing.assert_close(scores.cpu(), model(batch), rtol=1e-3, atol=1e-3)
else:
    print(f"The step on two GPUs is left out: this machine has {gpus}.")

# %% [markdown]
# On two GPUs, which [Kaggle](../site/pages/systems.md) lends, `forward` runs twice, on 32 rows each. And what does the
# wrapper do without a second GPU?

# %%
alone = nn.DataParallel(copy.deepcopy(model).to("cuda:0" if gpus else "cpu"), device_ids=[0] if gpus else None)
scores = alone(batch)
print(f"outside: {list(batch.shape)} to {list(scores.shape)}; device_ids: {alone.device_ids}")
print("saved:  ", *list(alone.state_dict())[:2], "…")

# %% [markdown]
# It splits nothing, and **says nothing**: `forward` ran once, on all 64 rows. Only the names have changed. The wrapper
# holds the model as its attribute `module`, and so every saved name begins with `module.`
#
# ## For reference
#
# | argument | default | meaning |
# |:--|:--|:--|
# | `device_ids` | all visible GPUs | the GPUs that compute. The first is *device 0*, and the model must be there |
# | `output_device` | `device_ids[0]` | the GPU that gathers the outputs. Move the labels there |
# | `dim` | 0 | the dimension that is cut and joined: 1 where a tensor is time × batch × features |
#
# What does scatter do with other inputs than a tensor? PyTorch's own `scatter` on two devices, with `chunk` in place of
# the copy to a GPU:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
inputs = {"a tensor": torch.arange(4), "a list of tensors": [torch.arange(4), torch.arange(2)],
          "a dict with a tensor": {"ids": torch.arange(4)}, "a list of numbers": [7, 8, 9, 10], "a string": "train"}
with mock.patch("torch.nn.parallel.scatter_gather.Scatter.apply",
                lambda devices, sizes, dim, tensor: tensor.chunk(len(devices), dim)):
    first, second = scatter(inputs, [0, 1])
lesson.table([{"input": kind, "value": value, "device 0 gets": first[kind], "device 1 gets": second[kind]}
              for kind, value in inputs.items()])

# %% [markdown]
# - **Scatter cuts each tensor that has a dimension to cut**, also inside a list, a tuple or a dict, and nothing else. A
#   tensor of class weights should stay whole: make it a buffer of the model. A list of labels stays whole, and no longer
#   fits the rows of its device.
# - **`module.`**: save `wrapped.module.state_dict()`, or strip a saved dict with
#   `nn.modules.utils.consume_prefix_in_state_dict_if_present(saved, "module.")`. DDP adds the same prefix.
# - **Order**: wrap, then move, or move, then wrap. DDP looks at the model when it wraps: there, move first.
# - **Batch size**: one loader reads for all GPUs, so `batch_size` is the whole batch. In DDP it is that of one process.
# - **`CUDA_VISIBLE_DEVICES=0,3 python main.py`** shows a program two GPUs, and numbers them anew as 0 and 1. The order
#   counts: with `3,0` the GPU 3 is `cuda:0`. Numbers after a -1 are ignored ([NVIDIA][rules]). CUDA reads the variable
#   once, at the first use of a GPU or at `torch.cuda.is_available()`. A later change has no effect, and no error says
#   so: set it in front of the command. `CUDA_DEVICE_ORDER=PCI_BUS_ID` counts as `nvidia-smi` does.
# - **Where you still meet it**: in old code, and in libraries that wrap a model unasked when they see several GPUs
#   ([an example](https://github.com/NVIDIA-Merlin/Transformers4Rec/issues/473)). `python main.py --strategy dp`
#   compares it with DDP.
#
# [rules]: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. `DataParallel` is one process. In each step it scatters the batch, replicates the model, applies the replicas in
#    threads and gathers the outputs. The gradients of the replicas are added up.
# 2. What `forward` writes into a replica is lost. Without a second GPU nothing is split, and nothing says so.
# 3. It moves the bytes of DDP and more, at moments when nobody can compute, and device 0 is an end of every transfer.
#
# **Next:** [03 · Processes and ranks](03_processes_and_ranks.ipynb). Your program will be several processes. How do
# they know who they are, and how do they find each other?
