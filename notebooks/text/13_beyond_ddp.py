# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         steps: 2
#       seconds: 35
#     seconds: 40
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 · Beyond DDP
#
# The model no longer fits on one device: what then? DDP shares out the images, and each rank still holds the whole model. Here the
# ranks share out the model, too, in several ways, and we count what each rank holds.

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import ast
import difflib
import inspect
import json
import os
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown, display

from course import plots, predict, processes
from course.lesson import code
from scripts.lessons import shard_ways
from course.checks import lesson_13 as check
from scripts.lessons.tiny_transformer import BATCH, SHAPE

# %% tags=["parameters"]
steps = 4  # updates of each run
parameters = 7e9  # of the model that we would like to train …
devices = 8  # … on so many GPUs of 80 GB; above 8 a multiple of 8, the size of a node

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank; lesson 07 says more
Path("results/live").mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## What has to fit
#
# Four things: parameters, gradients, the optimizer's state, and the *activations*, which forward keeps for backward.
# In mixed precision with Adam a parameter costs 2 + 2 + 12 bytes: itself and its gradient in 16 bits, and in 32 bits two averages and a
# copy of itself ([ZeRO, Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)).
#
# **Predict.** A model with 7 billion parameters, so 14 GB of weights in 16 bits. How many GB must each of 8 GPUs hold under DDP, without the activations?

# %%
my_gigabytes = 28

# %%
large = predict.memory.Transformer.of_size(parameters)
activations = large.layers * predict.memory.activations(large, micro_batch=1, recompute="attention")  # one sequence, FlashAttention
ways = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3 = FSDP": 3}
rows = {way: {**predict.memory.model_states(parameters, devices, stage), "activations": activations} for way, stage in ways.items()}
fig, ax = plt.subplots(figsize=(14, 6))
plots.sharded.states(rows, 80e9, ax)
ax.set_title(f"{plots.sharded.short(parameters)} parameters on {devices} devices: predicted", pad=38)
display(plots.picture(fig))  # fewer colours: a small file
total = {way: sum(predict.memory.model_states(parameters, devices, stage).values()) / 1e9 for way, stage in ways.items()}
Markdown(f"You said {my_gigabytes} GB; DDP needs **{total['DDP']:.0f} GB** on each device, however many there are. **ZeRO** (Zero Redundancy Optimizer) shares out what DDP has on every "
         f"rank: the optimizer's state (stage 1, {total['ZeRO-1']:.0f} GB), the gradients, too (stage 2, {total['ZeRO-2']:.0f} GB), and the parameters, too "
         f"(stage 3, {total['ZeRO-3 = FSDP']:.0f} GB).")

# %% [markdown]
# These are a paper's equations. We check them on a model that fits into two cores: a transformer with 4 layers, which learns the letters of this repository's LICENSE.
# `scripts/lessons/shard_model.py` trains it in several ways on the same ranks, with gloo on the CPU, also where there are GPUs. It starts each way
# from the same weights, compares with one process that has the whole batches, and counts bytes on each rank.
#
# **Predict.** Two ranks. By how much will the largest difference of any weight from the one process be? And which way leaves the fewest bytes on a rank, activations included?

# %%
my_difference, my_smallest = 0.01, "FSDP2"  # DDP, ZeRO-1, FSDP2, TP or pipeline

# %%
# !torchrun --nproc_per_node=2 scripts/lessons/shard_model.py --steps {steps} --out results/live/13_two.json

# %%
two = json.loads(Path("results/live/13_two.json").read_text())
live = {way: result for way, result in two["ways"].items() if "unsupported" not in result}
for way in two["ways"].keys() - live.keys():
    print(f"{plots.sharded.NAMES[way]} does not work in this torch ({two['torch']}): {two['ways'][way]['unsupported']}")
fullest = {way: max(sum(held[part] for part in plots.sharded.PARTS) for held in result["ranks"]) for way, result in live.items()}
lesson.table([{"way": plots.sharded.NAMES[way], "last loss": f"{result['losses'][-1]:.4f}", "loss off by": f"{result['loss_off']:.0e}",
       "weights off by": f"{result['weights_off']:.0e}", "MB on the fullest rank": f"{fullest[way] / 1e6:.2f}"} for way, result in live.items()])
farthest = max(result["weights_off"] for result in live.values())
assert farthest < 1e-5
smallest = min(fullest, key=fullest.get)
Markdown(f"You said {my_difference:g}, and {my_smallest}. The largest difference is **{farthest:.0e}**: sums in another order, and float32 has 7 digits. **All of them train the same "
         f"model.** Least on the fullest rank: **{plots.sharded.NAMES[smallest]}**.")

# %% [markdown]
# And where are the bytes? One thin bar for each rank. The activations of so small a model outweigh all the rest, so they have a picture of their own.

# %%
fig, axes = plt.subplots(1, 2, figsize=(18, 8), width_ratios=[3, 2])
plots.sharded.memory(two, axes)
display(plots.picture(fig))  # fewer colours: a small file

# %% [markdown]
# Read it from above. DDP holds on each rank what one process holds, except that each has half of the images. Now one way at a time.
#
# ## ZeRO-1: share out the optimizer's state
#
# Each rank updates some of the parameters, and sends them to the others. This is `ddp`, and then `zero1`: one other optimizer.

# %%
code(shard_ways.ddp, shard_ways.zero1)

# %%
if "zero1" in live:
    held = live["zero1"]["ranks"]
    lines = [f"The optimizer's state: {live['ddp']['ranks'][0]['optimizer state']:,} bytes on each rank under DDP, and here "
             f"{' and '.join(format(one['optimizer state'], ',') for one in held)}. Not quite half: it deals out **whole tensors**.",
             f"Rank 0 has the state of `{'`, `'.join(live['zero1']['state_of'][0][:4])}` and {len(live['zero1']['state_of'][0]) - 4} others.",
             "Gradients stay whole: `ZeroRedundancyOptimizer` is stage 1. For stage 2, `fully_shard(..., reshard_after_forward=False)` comes near; for stage 3, read on."]
    display(Markdown("\n".join(f"- {line}" for line in lines)))

# %% [markdown]
# ## FSDP2: share out the parameters, too
#
# Between two uses a rank keeps only its rows of each weight. Before a block computes, its weights are *all-gathered*; afterwards
# they are given back. In backward the same again, and the gradients are *reduce-scattered*: each rank gets the sum of its own rows (lesson [04](04_collectives.ipynb)).

# %%
code(shard_ways.fsdp)

# %%
if "fsdp" in live:
    held = live["fsdp"]["ranks"]
    lines = [f"Parameters: {' and '.join(format(one['parameters'], ',') for one in held)} bytes, of {live['ddp']['ranks'][0]['parameters']:,}. The head has {SHAPE.vocabulary} rows, an odd "
             f"number: {' and '.join(str(piece['shape'][0]) for piece in live['fsdp']['pieces']['head.weight'])}.",
             f"*Gathered* (the last colour): at most {held[0]['gathered']:,} bytes of weights are whole at one time: one block, and what stands outside the blocks. That is why each "
             "block gets a `fully_shard` of its own. Wrapped only once, the model would be gathered all at once.",
             "The price: each step sends the weights twice and the gradients once, 1.5 times what DDP sends (ZeRO paper, section 7).",
             "On a CPU it works, but nothing overlaps. A GPU gathers the next block in another *stream* while this one computes; PyTorch says of `torch.cpu.Stream`: "
             f"*{' '.join(torch.cpu.Stream.__doc__.split())}*"]
    display(Markdown("\n".join(f"- {line}" for line in lines)))

# %% [markdown]
# ## Tensor parallelism: share out each multiplication
#
# ZeRO and FSDP share out what is *kept*. Each rank still computes whole layers, on its own images. Tensor parallelism (TP) shares out the *computing*: each rank has some
# of the attention heads, and some columns of the MLP, and all ranks see **the same** images. After each half of a block an all-reduce adds up ([Megatron-LM, Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)).

# %%
code(shard_ways.tp, shard_ways.split_matrices)

# %% [markdown]
# `init_device_mesh` gives the ranks a shape: here a line, below a rectangle. `ColwiseParallel` cuts the output of a layer, `RowwiseParallel` its input, so that
# between the two nothing has to be sent.
#
# **Predict.** Two ranks of TP. Each computes half of every layer. Does each keep half of the activations of one process?

# %%
my_half = True

# %%
if "tp" in live:
    one, tp = live["one"]["ranks"][0]["activations"], live["tp"]["ranks"][0]["activations"]
    display(Markdown(f"You said {my_half}. It is **{tp / one:.0%}**: {tp:,} of {one:,} bytes. The LayerNorms and the residual path work on whole activations, on each rank alike. "
                     "(*Sequence parallelism* shares out these, too: Korthikanti et al., below.) And each all-reduce is waited for: TP wants the fastest links there are."))

# %% [markdown]
# ## Pipeline: share out the layers
#
# Rank 0 has the first layers, rank 1 the last. To keep both busy, the batch is cut into **micro-batches**. `torch.distributed.pipelining` has the
# schedules. *GPipe* runs all forwards, then all backwards. *1F1B* (one forward, one backward) goes back as soon as it can.

# %%
code(shard_ways.pipeline)

# %% [markdown]
# **Predict.** Two stages, four micro-batches. For which share of the time does a rank wait, if all stages take equally long and sending is free? This waiting is called the **bubble**.

# %%
my_bubble = 0.5

# %%
schedules = [way for way in ("gpipe", "1f1b") if way in live]
waited = {}
fig, axes = plt.subplots(len(schedules), 1, figsize=(16, 4.6 * len(schedules)), squeeze=False)
for ax, way in zip(axes[:, 0], schedules, strict=True):
    events = pd.DataFrame(live[way]["timeline"])
    plots.timeline(events, ax)
    ax.set_title(f"{plots.sharded.NAMES[way]}: a number is a micro-batch", pad=36)
    ax.set_xlabel("ms (measured)")
    waited[way] = 1 - (events["end"] - events["start"]).sum() / (2 * events["end"].max())
display(plots.picture(fig))  # fewer colours: a small file
least = predict.memory.bubble(2, two["micro_batches"])
Markdown(f"You said {my_bubble:.0%}. Were all stages equally long, and sending free, it would be (p − 1) / (m + p − 1) = **{least:.0%}** for p stages and m micro-batches "
         f"([GPipe, Huang et al. 2019](https://arxiv.org/abs/1811.06965)). Measured here: {' and '.join(f'{share:.0%} ({plots.sharded.NAMES[way]})' for way, share in waited.items())}. "
         "Sending adds to it, and so do unequal stages: the last also has the head. (That backward takes longer than forward adds nothing, as it does so on all stages.) "
         "Where the ranks share a core, it can be less: their work then takes longer while both are busy.")


# %% [markdown]
# (For this picture the model is a little larger, so that a micro-batch takes longer than sending it.) By the equation both have the same bubble. The difference is memory, as the bars above show: with GPipe all micro-batches wait for their backward; with 1F1B stage 0 keeps at most
# as many as there are stages, the last stage one.
#
# ## Does the model of the memory hold?
#
# `course/predict/memory.py` predicts the bytes on each rank. Counted against predicted, for all ranks and all ways:

# %%
def compare(found):
    rows = []
    for way, result in found["ways"].items():
        if "unsupported" not in result:
            predicted = predict.memory.count(SHAPE, way, found["world_size"], found["batch"], found["micro_batches"])
            row = {"way": plots.sharded.NAMES[way]}
            for part in plots.sharded.PARTS:
                counted = sum(held[part] for held in result["ranks"])
                row[f"{part}, all ranks"] = f"{counted:,}" + (" = predicted" if counted == sum(held[part] for held in predicted) else f", predicted {sum(held[part] for held in predicted):,}")
            row["each rank"] = "equal" if all(held[part] == right[part] for held, right in zip(result["ranks"], predicted, strict=True) for part in right) else "differs"
            rows.append(row)
    return rows


lesson.table(compare(two))

# %% [markdown]
# Equal to the byte, where PyTorch shares out whole tensors and whole rows. The papers' equations share out single values; for large models that is the same.
#
# For the activations the equation is that of [Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198): with sequence length s, batch b, hidden size h, a heads, each layer keeps
# s·b·h·(34 + 5·a·s/h) bytes. Ours keeps another number. Why?

# %%
sbh, ratio = SHAPE.sequence * BATCH * SHAPE.hidden, SHAPE.heads * SHAPE.sequence / SHAPE.hidden
of_a_layer = predict.memory.activations(SHAPE, BATCH, dropout=False, size=4, stats=True)
paper = predict.memory.activations(SHAPE, BATCH)
lesson.table([{"": "the paper", "bytes a layer": f"{paper:,.0f}", "why": f"s·b·h·(34 + 5·{ratio:g}), 16 bits"},
      {"": "without dropout", "bytes a layer": f"{predict.memory.activations(SHAPE, BATCH, dropout=False):,.0f}", "why": f"no masks, no second copy of the attention: s·b·h·(32 + 2·{ratio:g})"},
      {"": "in float32", "bytes a layer": f"{predict.memory.activations(SHAPE, BATCH, dropout=False, size=4):,.0f}", "why": "4 bytes a value instead of 2"},
      {"": "with LayerNorm's mean and deviation", "bytes a layer": f"{of_a_layer:,.0f}", "why": "two LayerNorms, two numbers a token each, which the paper neglects"}])
counted = live["one"]["ranks"][0]["activations"]
head = counted - SHAPE.layers * of_a_layer
assert counted == predict.memory.count(SHAPE, "one", 1, BATCH)[0]["activations"]
Markdown(f"{SHAPE.layers} × {of_a_layer:,.0f} = {SHAPE.layers * of_a_layer:,.0f} bytes. Counted: **{counted:,}**. The other {head:,.0f} are the last LayerNorm, the head and the loss. "
         f"The term with a·s/h is {2 * ratio / (32 + 2 * ratio):.0%} of a layer here. It grows with the *square* of the sequence; FlashAttention computes it again in backward instead of keeping it.")

# %% [markdown]
# ## Four ranks, and a mesh of 2 × 2
#
# The ways can be combined. With a `DeviceMesh` of two dimensions, TP runs along one and FSDP along the other: TP within a node, where links are fast, FSDP between nodes.

# %%
code(shard_ways.fsdp_tp)

# %%
# !torchrun --nproc_per_node=4 scripts/lessons/shard_model.py --steps {steps} --way ddp zero1 fsdp tp fsdp_tp 1f1b --out results/live/13_four.json

# %%
four = json.loads(Path("results/live/13_four.json").read_text())
working = [way for way in ("ddp", "fsdp", "tp", "fsdp_tp", "1f1b") if "unsupported" not in four["ways"][way]]
fig = plots.sharded.pieces(four, working, ["head.weight", "blocks.0.up.weight", "blocks.0.down.weight", "blocks.3.query.weight"])
display(plots.picture(fig))  # fewer colours: a small file

# %% [markdown]
# Nobody drew this by hand: each rank looked for its own values in the whole weight. FSDP cuts rows. TP cuts `up` by rows and `down` by columns (PyTorch keeps a weight as outputs × inputs). On the mesh, rank 1 has
# the second half of TP's cut. A pipeline rank has whole weights, of its own layers.

# %%
fig, axes = plt.subplots(1, 2, figsize=(18, 10), width_ratios=[3, 2])
plots.sharded.memory(four, axes)
display(plots.picture(fig))  # fewer colours: a small file
same = max(result["weights_off"] for result in four["ways"].values() if "weights_off" in result)
assert same < 1e-5 and all(row["each rank"] == "equal" for row in compare(four))
Markdown(f"Compared with two ranks, ZeRO-1's floor shows: parameters and gradients stay. All of them still train the model of one process (farthest: {same:.0e}), and every byte is as predicted.")

# %% [markdown]
# ## What does not work
#
# Two mistakes that PyTorch answers with an error, tried live on the two ranks above:

# %%
lesson.table([{"tried": tried, "PyTorch says": f"`{said}`" if said else "it works in this version"} for tried, said in two["limits"].items()])
Markdown(f"(torch {two['torch']}.) TP needs sizes that its ranks divide: heads, and the width of the MLP. A pipeline needs at least as many micro-batches as stages for 1F1B. "
         "FSDP and ZeRO-1 take any size, as you saw with the odd number of rows. What needs GPUs here: overlap of gathering with computing, and NCCL.")

# %% [markdown]
# ## RPC and the parameter server
#
# Before all-reduce was common, training was often a **parameter server**: one process holds the parameters, workers ask for them and send gradients back
# ([Li et al. 2014](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu)). `torch.distributed.rpc` can do it: it calls a function in another process. All traffic meets at the server, and with workers that do not wait
# for each other, gradients are of older weights.
#
# Where it stands: the module is still there, with its [tutorial](https://docs.pytorch.org/tutorials/intermediate/rpc_param_server_tutorial.html), but it is [not actively developed](https://github.com/pytorch/tutorials/issues/3118). What carries its messages, TensorPipe,
# has said since December 2025 that it is in [maintenance mode](https://github.com/pytorch/tensorpipe/pull/468). Start nothing new on it. The idea lives on in recommender systems, whose embedding
# tables are too large for each rank.

# %%
import torch.distributed.rpc

print(f"torch {torch.__version__}: torch.distributed.rpc is {'' if torch.distributed.rpc.is_available() else 'not '}available")

# %% [markdown]
# ## Which one, then?
#
# It depends on three numbers: the size of the model, how many devices, and how fast their links are. `predict.memory.choose` tries each way, with several micro-batches, and with recomputing
# the activations or not. It throws away what does not fit into 90 % of 80 GB, and predicts the seconds a step from computing, sending and the bubble. Of the rest it takes **the simplest that is at most 1.2 times as slow as the fastest**.
#
# **Predict.** Your 7 billion parameters on 8 GPUs: which way?

# %%
my_way = "FSDP"

# %%
counts, sizes = [2**i for i in range(13)], [10 ** (8 + i / 8) for i in range(33)]
links = {"InfiniBand, 400 Gbit/s a device": 50e9, "Ethernet, 100 Gbit/s a node": 100e9 / 8 / 8}  # bytes a second and device
fig, axes = plt.subplots(1, 2, figsize=(20, 10), sharey=True)
maps = [plots.sharded.grid(lambda count, between=between: predict.memory.Cluster(count, between=between), counts, sizes) for between in links.values()]
for ax, name, chosen in zip(axes, links, maps, strict=True):
    plots.sharded.chart(chosen, counts, sizes, ax, name)
plots.sharded.legend(fig, *maps)
axes[0].set_ylabel("parameters")
fig.suptitle("The simplest way that fits and is fast enough (predicted)", x=0.01, ha="left", fontweight="bold", fontsize=22)
display(plots.picture(fig))  # fewer colours: a small file
plan, fits = predict.memory.choose(parameters, predict.memory.Cluster(devices))
lines = [f"{plots.sharded.short(parameters)} on {devices}: you said {my_way}. The map says **{plan.way if plan else 'nothing fits'}**."]
lines += [f"{way}: {sum(one.bytes.values()) / 1e9:.0f} GB a device, {one.seconds:.0f} s a step of 4 million tokens" for way, one in fits.items()]
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# What the map assumes: nodes of 8 NVIDIA H100 with NVLink, 40 % of their arithmetic used (Llama 3 [reports](https://arxiv.org/abs/2407.21783) 38 to 43 %), GPT-3's shapes, sequences of 4096 tokens, 1024 of them a step. The sources
# stand in `course/predict/memory.py`. It is a model, not a measurement: trust the regions, not their borders.
#
# - **Below, DDP.** As long as the model fits, nothing is simpler, and it sends least.
# - **Then ZeRO-1, then FSDP**: the same program but for one line or two.
# - **TP** where there are more devices than sequences (1024 here): then several must share one. Within a node only.
# - **Pipelines** where links between nodes are slow, or memory is at its limit: they send the least.
#
# Other numbers? `python scripts/measure/predict.py memory --parameters 70e9 --devices 64 --between 1.5`

# %%
# !python scripts/measure/predict.py memory --parameters {parameters} --devices {devices}

# %% [markdown]
# ## What production uses
#
# Few people write these loops by hand. What does each engine add to what you know?

# %%
engines = [
    ("torchrun on Slurm or Kubernetes", "starts and restarts the ranks; the scheduler finds nodes, queues and limits. On Kubernetes an operator turns one TrainJob (formerly PyTorchJob) into pods", "all of the training: your main.py",
     "[torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), [Kubeflow](https://www.kubeflow.org/docs/components/trainer/operator-guides/migration/), lesson 10"),
    ("torchtitan", "PyTorch's own FSDP2, TP, pipeline and context parallelism combined by a configuration file; float8, async checkpoints, compile", "little freedom: it trains large language models, and is itself an example to copy from",
     "[repository](https://github.com/pytorch/torchtitan), [paper](https://arxiv.org/abs/2410.06511)"),
    ("DeepSpeed", "ZeRO 1 to 3 behind a JSON file, and offload: optimizer state and parameters in the CPU's memory or on disk", "an engine object around model, backward and step", "[deepspeed.ai](https://www.deepspeed.ai/)"),
    ("Accelerate", "the same loop on one GPU, DDP, FSDP or DeepSpeed: `prepare(...)`, and a questionnaire that writes the configuration", "the loop stays yours", "[manual](https://huggingface.co/docs/accelerate)"),
    ("Lightning Fabric", "the same with `setup(...)`: strategy and precision are two arguments; it can also launch", "the loop stays yours (Lightning's Trainer takes that, too)", "[manual](https://lightning.ai/docs/fabric/stable/)"),
    ("Ray Train", "workers on a Ray cluster, started anew after a failure; data loading and tuning on the same cluster", "the function that a worker runs: any of the above", "[manual](https://docs.ray.io/en/latest/train/train.html)"),
]
lesson.table([dict(zip(("engine", "adds", "leaves to you", "source"), engine, strict=True)) for engine in engines])


# %% [markdown]
# Two of them are small enough to try. `scripts/rivals/fabric_loop.py` and `scripts/rivals/accelerate_loop.py` are `main.py`'s loop under Fabric and Accelerate. What changes in the loop?

# %%
def function_of(file, name):
    """The source of a function, read and not imported: the framework need not be installed."""
    text = Path(file).read_text()
    return next(ast.get_source_segment(text, node) for node in ast.parse(text).body if getattr(node, "name", "") == name)


for script in ("fabric_loop", "accelerate_loop"):
    theirs = [line.strip() for line in function_of(f"scripts/rivals/{script}.py", "train").splitlines() if line.strip()]
    ours = {line.strip() for line in Path("main.py").read_text().splitlines()}
    new = [line for line in theirs if line not in ours]
    print(f"{script}.py, train(): {len(new)} of {len(theirs)} lines are not in main.py. Those that name the framework:")
    print("\n".join(f"    {line}" for line in new if any(word in line for word in ("abric", "ccelerat"))))
diff = difflib.unified_diff(function_of("scripts/rivals/fabric_loop.py", "train").splitlines(), function_of("scripts/rivals/accelerate_loop.py", "train").splitlines(),
                            "fabric_loop.py", "accelerate_loop.py", n=0, lineterm="")
print("\nAnd from one framework to the other, in train():\n" + "\n".join(diff))

# %% [markdown]
# Do they train the same model? Two ranks, the same options, and then we compare the weights. This runs where the packages are installed.

# %%
packages = {"fabric": "lightning_fabric", "accelerate": "accelerate"}
programs = {"main": "main.py", **{name: f"scripts/rivals/{name}_loop.py" for name, package in packages.items() if find_spec(package)}}
missing = [name for name in packages if name not in programs]
if missing:
    print(f"Not installed here, so not run: {' and '.join(missing)}. To try it: pip install -r requirements-optional.txt")
if len(programs) > 1:
    weights = {}
    for name, program in programs.items():
        saved = Path(f"results/live/13_{name}.pt")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", program, "--device", "cpu", "--dataset", "synthetic", "--samples", "600",
                   "--test-samples", "100", "--epochs", "1", "--save-model", str(saved)]
        status = processes.run(command, 120, mark=uuid.uuid4().hex, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert status == 0, f"{program}: {'not done within 120 s' if status is None else f'status {status}'}"
        weights[name] = torch.load(saved, weights_only=True)
    off = {name: max((theirs[key] - value).abs().max().item() for key, value in weights["main"].items()) for name, theirs in weights.items() if name != "main"}
    assert max(off.values()) < 1e-5
    print("\n".join(f"{name}: the weights differ from main.py's by {value:.0e} at most" for name, value in off.items()))


# %% [markdown]
# `tests/test_frameworks.py` checks this with one, two and three ranks. A framework changes how a loop is written, not what it computes.
#
# ## Exercises
#
# 1. Bytes of the model states on each of `ranks` ranks, at a ZeRO `stage` from 0 (DDP) to 3, in mixed precision with Adam.

# %%
def my_states(parameters, ranks, stage):
    raise NotImplementedError


check.zero(my_states)
# check.zero.hint()
# check.zero.solution()

# %% [markdown]
# 2. The fewest devices of `memory` bytes on which these states fit, activations left aside. `None` if no number is enough.

# %%
def my_fewest(parameters, memory, stage):
    raise NotImplementedError


check.fits(my_fewest)
# check.fits.hint()
# check.fits.solution()

# %% [markdown]
# 3. The share of all slots in which a stage of a pipeline waits. All forwards take one slot, sending nothing. (Backward has the same share.)

# %%
def my_idle(stages, micro_batches):
    raise NotImplementedError


check.idle(my_idle)
# check.idle.hint()
# check.idle.solution()

# %% [markdown]
# 4. The rows of a weight that rank `rank` of `ranks` holds under FSDP2, as a list of numbers. Also for rows that do not divide, and for fewer rows than ranks.

# %%
def my_rows(rows, rank, ranks):
    raise NotImplementedError


check.rows(my_rows)
# check.rows.hint()
# check.rows.solution()

# %% [markdown]
# ## What to remember
#
# - 16 bytes a parameter, plus activations. DDP holds all of it on every rank.
# - ZeRO and FSDP share out what is kept; TP shares out each multiplication; a pipeline shares out the layers. All train the same model.
# - Take the simplest that fits: DDP, ZeRO-1, FSDP, and only then TP and pipelines.
#
# ## Where next
#
# - Run `torchrun --nproc_per_node=3 scripts/lessons/shard_model.py --out results/live/13_three.json`, and look at the shards: 97 rows, 3 ranks.
# - Set `parameters` and `devices` at the top to yours. (The questions go on speaking of 7 billion on 8.)
# - `scripts/lessons/shard_ways.py`: each way is a few lines. Lesson [11](11_fault_tolerance.ipynb) saves a sharded model with `torch.distributed.checkpoint`.
