"""The exercise of lesson 13b: a model made to fit by what the learner chooses, and predicts."""

from unittest import mock

import torch
from torch import nn

from course import memory
from course import tiny_transformer as tiny
from course.exercise import Case, Wrong, mistake
from course.on_ranks import ExerciseOnRanks, Measurement
from course.sharding import FSDP_IMPORTS
from lessons.l13b_fsdp2.fit import kept_by

OFF = 0.25  # of what is needed, a prediction may be off by


def my_fsdp(model, mesh, limit, kept):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    again = next((again for again in range(len(model.blocks)) if needed(model, mesh.size(), kept, again) <= limit),
                 len(model.blocks))
    for name in list(model.blocks)[:again]:  # the first: when backward comes to them, the others are through
        model.blocks[name] = checkpoint_wrapper(model.blocks[name])
    predicted = needed(model, mesh.size(), kept, again)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return predicted


def needed(model, ranks, kept, again, bits=16):
    """Bytes of a rank where `again` of the blocks are recomputed."""
    values, of_a_block = (sum(parameter.numel() for parameter in part.parameters())
                          for part in (model, model.blocks["0"]))
    blocks = len(model.blocks)
    shared = 16 * values / ranks  # parameter, gradient, two averages, in 32 bits
    whole = bits / 8 * (values - (blocks - 1) * of_a_block)  # at one time: a block, and what stands outside
    activations = (blocks - again) * kept["block"] + again * kept["input"] + kept["head"]
    activations += kept["block"] if again else 0  # one that is made again
    return shared + whole + activations * bits / 32


def states_alone(model, ranks, kept, again):
    return 16 * sum(parameter.numel() for parameter in model.parameters()) / ranks


def none_made_again(model, ranks, kept, again):
    return needed(model, ranks, kept, again) - (kept["block"] if again else 0) / 2


WRAP, OF_BLOCKS, OF_MODEL = "    for name in list(", """    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
""", "    fully_shard(model, mesh=mesh, mp_policy=policy)\n"


def measure_my_fsdp(function, context):
    """What this rank needs in a step of the model that `function` has sharded, and what it predicts. On two ranks
    the limit is loose, on more it is tight."""
    from torch.distributed.device_mesh import init_device_mesh

    from lessons.l13b_fsdp2.shard_in_use import Alive, gradients, turned

    rank, ranks, layers = context.rank, context.world_size, 5
    fewest = 0 if ranks == 2 else 3  # blocks that must be recomputed
    shape = memory.Transformer(layers, hidden=48, heads=4, sequence=32, vocabulary=tiny.SHAPE.vocabulary)
    sequences = tiny.BATCH // ranks
    torch.manual_seed(0)
    model, alone = (tiny.TinyTransformer(shape) for _ in range(2))
    alone.load_state_dict(model.state_dict())
    kept = kept_by(shape, sequences)
    limit = 1.03 * needed(model, ranks, kept, fewest)
    predicted = function(model, init_device_mesh("cpu", (ranks,)), limit, kept)
    if not isinstance(predicted, int | float) or isinstance(predicted, bool):
        raise Wrong(f"You returned {predicted!r}. Return the bytes that you predict, a number.")
    tokens, targets = next(tiny.batches(1, shape))
    own = slice(rank * sequences, (rank + 1) * sequences)
    calls, linear = [], nn.functional.linear
    with Alive() as alive, mock.patch.object(nn.functional, "linear",
                                             lambda *args: calls.append(1) or linear(*args)):
        tiny.loss_of(model(tokens[own]), targets[own]).backward()
    everything = slice(ranks * sequences)
    tiny.loss_of(alone(tokens[everything]), targets[everything]).backward()
    parameters = list(model.parameters())
    again = (len(calls) - 6 * layers - 1) / 6  # a block has six linear layers, and the model one more
    return {"limit": limit, "fewest": fewest, "predicted": float(predicted), "again": again,
            "layers": layers, "types": sorted({str(each.dtype).removeprefix("torch.") for each in parameters}),
            "sharded": tiny.bytes_of(parameters) < tiny.bytes_of(alone.parameters()),
            "gradient off": turned(gradients(model), gradients(alone)),
            "needed": 3 * tiny.bytes_of(parameters) + alive.most}  # and Adam's averages


def fit(ranks):
    """16-bit copies and a call of fully_shard for each block make nothing longer to compute. Only what still does not
    fit is recomputed, and as few blocks as will do. What you predicted is what the ranks needed."""
    for rank, measured in enumerate(ranks):
        yield from cases_of_rank(f"On rank {rank} of {len(ranks)}, with {measured['limit'] / 1e6:.1f} MB", measured)


def cases_of_rank(on, measured):
    megabytes = measured["needed"] / 1e6
    yield Case(measured["types"], ["float32"],
               f"{on}, parameters are kept as {' and '.join(measured['types'])}. Adam's small steps need float32.")
    yield Case(measured["sharded"], True, f"{on}, the rank has all parameters whole: nothing was sharded.")
    yield Case(measured["gradient off"] < 0.05, True,
               f"{on}, the gradient is off by {measured['gradient off']:.0%} of its length from that of one process.")
    yield Case(max(100, round(100 * measured["needed"] / measured["limit"])), 100,
               f"{on}, a step needs {megabytes:.1f} MB. It does not fit.")
    yield Case(measured["predicted"] / measured["needed"], 1,
               f"{on}, it fits. You predicted {measured['predicted']:,.0f} bytes, and it needs "
               f"{measured['needed']:,}: at most {OFF:.0%} off will do.", rel_tol=OFF)
    again, most = round(measured["again"], 1), measured["fewest"] + 1
    yield Case(max(again, most), most,
               f"{on}, it fits, but {again:g} of {measured['layers']} blocks are computed twice. "
               + (f"{measured['fewest']} are enough." if measured["fewest"] else "None needs to be."))


fit = ExerciseOnRanks(
    fit,
    solution=my_fsdp,
    hint="What is always right: a fully_shard for each block, then one for the model, with param_dtype=torch.bfloat16. "
    "A rank then has 16 bytes / ranks for each parameter (its shard, its gradient, two averages), 2 bytes for each "
    "weight that is whole at one time, and half of the activations in `kept`. If k of n blocks are recomputed, these "
    "are n - k blocks, k inputs, the head, and one more block while it is made again. Begin with k = 0, and raise it "
    "until the sum is below the limit.",
    mistakes={
        "All blocks are recomputed, whatever the limit. Each costs a forward more: recompute as few as fit.":
            mistake(my_fsdp, {WRAP: f"    again = len(model.blocks)\n{WRAP}"}),
        "Nothing is recomputed, and 16 bits alone do not halve it often enough.":
            mistake(my_fsdp, {WRAP: f"    again = 0\n{WRAP}"}),
        "All is in 32 bits. With a MixedPrecisionPolicy activations take half, and fewer blocks are computed twice.":
            mistake(my_fsdp, {"kept, again)": "kept, again, 32)", "param_dtype=torch.bfloat16, ": ""}),
        "fully_shard was called for the model alone, so that all weights and all gradients are whole at one time.":
            mistake(my_fsdp, {OF_BLOCKS: ""}),
        "You made the model itself 16-bit. Shards stay in 32 bits; the policy makes a 16-bit copy to compute with.":
            mistake(my_fsdp, {"    again = next": "    model.bfloat16()\n    again = next"}),
        "That is what parameters, gradients and averages need. Activations come on top.":
            mistake(my_fsdp, {"needed(": "states_alone("}),
        "You recompute the last blocks. Backward comes to them first, when all others still keep theirs. Take the "
        "first.": mistake(my_fsdp, {"[:again]": "[len(model.blocks) - again:]", "needed(": "none_made_again("}),
        "fully_shard goes from the inside out: the blocks first, the model last.":
            mistake(my_fsdp, {OF_BLOCKS: "", OF_MODEL: f"{OF_MODEL}{OF_BLOCKS}"}),
        "Is there a fully_shard for the model, too? It takes what stands outside the blocks.":
            mistake(my_fsdp, {OF_MODEL: ""}),
        "`kept` is in 32 bits. Activations in 16 take half of it.":
            mistake(my_fsdp, {"kept, again)": "kept, again, 32)"}),
    },
    measurement=Measurement(measure_my_fsdp, "my_fsdp", preload=FSDP_IMPORTS),
    ranks=(2, 3),
)
