"""What each rank must hold to train a transformer, and what FSDP sends.

Bytes of parameters, gradients, optimizer state and activations, by strategy, from the equations of the papers named at
each function. `count` gives the exact bytes of tiny_transformer.py; lessons/l13_beyond_ddp/test_beyond_ddp.py compares
them with those that ranks hold.
Left out: the logits, the workspace of kernels, and memory lost to fragmentation.
DDP's gradients are views of its buckets (gradient_as_bucket_view=True), else there would be two of each.
"""

import math
from dataclasses import dataclass

PARTS = ["parameters", "gradients", "optimizer state", "activations"]
MOMENT = "for a moment"  # the part that is there only while a device computes with it


@dataclass(frozen=True)
class Bytes:
    """Of one value of the model."""

    parameter: float
    gradient: float
    state: float  # of the optimizer
    activation: float


FLOAT32 = Bytes(4, 4, 8, 4)  # Adam keeps two averages of each gradient
MIXED = Bytes(2, 2, 12, 2)  # Adam in mixed precision: 16-bit, and a float32 copy beside the averages (1910.02054, 3.1)
AUTOCAST = Bytes(4, 4, 8, 2)  # the same in PyTorch: torch.autocast leaves weights and gradients in float32
SEQUENCE = 4096  # tokens, of the models that are predicted


@dataclass(frozen=True)
class Transformer:
    """A decoder like GPT-2, no biases but LayerNorm's, and 4 x hidden within the MLP."""

    layers: float
    hidden: float
    heads: float
    sequence: int  # tokens
    vocabulary: int = 0

    @classmethod
    def of_size(cls, parameters):
        """The shape of GPT-3's larger models (Brown et al. 2020, 2005.14165, table 2.1): hidden = 128 layers, heads =
        layers, 12 hidden^2 parameters a layer. No whole numbers: it is for estimates."""
        layers = (parameters / 12 / 128**2) ** (1 / 3)
        return cls(layers, 128 * layers, layers, SEQUENCE)

    def tensors(self):
        """{name: shape}, in the order of the model."""
        h, wide = self.hidden, 4 * self.hidden
        block = {"norm1.weight": (h,), "norm1.bias": (h,), "query.weight": (h, h), "key.weight": (h, h),
                 "value.weight": (h, h), "out.weight": (h, h), "norm2.weight": (h,), "norm2.bias": (h,),
                 "up.weight": (wide, h), "down.weight": (h, wide)}
        return {"position": (self.sequence, h), "embedding.weight": (self.vocabulary, h),
                **{f"blocks.{i}.{name}": shape for i in range(self.layers) for name, shape in block.items()},
                "norm.weight": (h,), "norm.bias": (h,), "head.weight": (self.vocabulary, h)}


# ------------------------------------------------------------------------------------------ the papers' equations


def model_states(parameters, ranks, stage=0, size=MIXED):
    """{part: bytes a rank}. Stage 0 is DDP; 1, 2, 3 share out the state, the gradients too, and the parameters too.

    ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), section 5 and figure 1: with K = 12 bytes of state a parameter,
    (2 + 2 + K), 2 + 2 + K/N, 2 + (2 + K)/N, (2 + 2 + K)/N. FSDP is stage 3.
    """
    sizes, shared_from = (size.parameter, size.gradient, size.state), (3, 2, 1)
    return {part: each * parameters / (ranks if stage >= first else 1)
            for part, each, first in zip(PARTS[:3], sizes, shared_from, strict=True)}


def for_a_moment(parameters, layers, stage, size):
    """Bytes in 16 bits that a device has beside its share while it computes. FSDP (stage 3): the layer in use, the next
    one, which arrives meanwhile, and a layer's gradients. Autocast: a copy of each weight, kept until backward has used
    it (lessons/l13_beyond_ddp/test_memory.py counts them)."""
    if stage == 3:
        return (2 * MIXED.parameter + MIXED.gradient) * parameters / layers
    return MIXED.parameter * parameters if size is AUTOCAST else 0


def shared_out(parameters, devices):
    """{name: {part: bytes a device}} of DDP, of ZeRO's stages, and of ZeRO-1 as PyTorch has it, with FlashAttention.

    ZeroRedundancyOptimizer over DDP keeps float32 weights and gradients whole: 4 + 4 + 8/N bytes a parameter. (Megatron
    Core's manual has the same figures for its own, with float32 weights and gradients: 8 + 8/d.)
    """
    model, named = Transformer.of_size(parameters), {
        "DDP": (0, AUTOCAST), "ZeRO-1 as PyTorch has it": (1, AUTOCAST), "ZeRO-1 in the paper": (1, MIXED),
        "ZeRO-2 in the paper": (2, MIXED), "ZeRO-3: FSDP": (3, AUTOCAST)}
    kept = model.layers * activations(model, 1, recompute="attention")
    return {name: {**model_states(parameters, devices, stage, size), "activations": kept,
                   MOMENT: for_a_moment(parameters, model.layers, stage, size)}
            for name, (stage, size) in named.items()}


def activations(model, micro_batch, tensor=1, recompute="none", dropout=True, size=2, stats=False):
    """Bytes that backward needs of one layer, on each of `tensor` ranks.

    Korthikanti et al. 2022 (arXiv 2205.05198): with 16-bit values s b h (34 + 5 a s / h) on one rank (equation 1), and
    s b h (10 + 24 / t + 5 a s / (h t)) on t (equation 2). `recompute` "attention" leaves out the last term (its section
    5; FlashAttention has the same effect), "all" keeps a layer's input alone: 2 s b h. Without dropout there are no
    masks (a byte a value) and no second copy of the attention: s b h (8 + 24 / t + 2 a s / (h t)). With `size` 4 for
    float32 all of it doubles. `stats`: LayerNorm also keeps a mean and a deviation of each token, which they neglect.
    """
    s, b, h, a, t = model.sequence, micro_batch, model.hidden, model.heads, tensor
    whole, shared, scores = (10, 24, 5) if dropout else (8, 24, 2)
    if recompute == "all":
        return s * b * h * size
    squares = 0 if recompute == "attention" else scores * a * s / h / t
    return s * b * h * (whole + shared / t + squares) * size / 2 + stats * 4 * s * b * size


def bubble(stages, micro_batches):
    """The share of a step in which a stage waits: (p - 1) / (m + p - 1) (GPipe: Huang et al. 2019, 1811.06965)."""
    return (stages - 1) / (micro_batches + stages - 1)


# ------------------------------------------------------------------------------------ exact counts, for whole tensors

values = math.prod  # of a tensor, from its shape


def greedy(shapes, ranks):
    """[rank] -> names: how ZeroRedundancyOptimizer deals whole tensors out, the largest first, to the emptiest rank."""
    dealt, load = [[] for _ in range(ranks)], [0] * ranks
    for name in sorted(shapes, key=lambda name: -values(shapes[name])):
        rank = load.index(min(load))
        dealt[rank].append(name)
        load[rank] += values(shapes[name])
    return dealt


def rows(shape, rank, ranks, dim=0):
    """The shape of a rank's chunk: ceil(n / ranks) rows each, as long as there are any (torch.chunk)."""
    chunk = math.ceil(shape[dim] / ranks)
    mine = min(chunk, max(0, shape[dim] - rank * chunk))
    return (*shape[:dim], mine, *shape[dim + 1:])


SPLIT = {"query": 0, "key": 0, "value": 0, "up": 0, "head": 0, "out": 1, "down": 1, "embedding": 1}  # dim, under TP


def tensor_parallel(shapes, rank, ranks):
    """{name: shape} on a rank: columns and rows of the matrices (Shoeybi et al. 2019, 1909.08053); norms whole."""
    dims = {name: SPLIT.get(name.split(".")[-2] if "." in name else name) for name in shapes}
    return {name: shape if dims[name] is None else rows(shape, rank, ranks, dims[name])
            for name, shape in shapes.items()}


def stage_layers(layers, stages):
    """[stage] -> its layers: as equal as can be, the first stages get what is left over."""
    sizes = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return [range(sum(sizes[:stage]), sum(sizes[:stage + 1])) for stage in range(stages)]


def stage_tensors(model, stage, stages):
    """{name: shape} of a pipeline stage; the first has the embedding, the last the head."""
    mine = {f"blocks.{i}." for i in stage_layers(model.layers, stages)[stage]}
    first = ("position", "embedding.") if stage == 0 else ()
    last = ("norm.", "head.") if stage == stages - 1 else ()
    return {name: shape for name, shape in model.tensors().items() if name.startswith((*first, *mine, *last))}


def count(model, way, ranks, batch, micro_batches=4):
    """[rank] -> {part: bytes}, exact, of the small transformer as lessons/l13_beyond_ddp/shard_model.py trains it,
    with Adam.

    `way`: one, ddp, zero1, fsdp, tp, fsdp_tp (two ranks of TP, the rest FSDP), gpipe or 1f1b. `batch` sequences of all
    ranks together. Adam also has a step count of 4 bytes for each tensor. MOMENT: the weights that FSDP has whole at
    one time, on a CPU one block and what stands outside the blocks.
    """
    everything, of_ranks = model.tensors(), []
    tensor = {"tp": ranks, "fsdp_tp": 2}.get(way, 1)
    for rank in range(ranks):
        held, gathered = tensor_parallel(everything, rank % tensor, tensor), 0
        if way in ("gpipe", "1f1b"):
            held = stage_tensors(model, rank, ranks)
        if way in ("fsdp", "fsdp_tp"):
            gathered = sum(values(shape) for name, shape in held.items()
                           if not name.startswith("blocks.") or name.startswith("blocks.0."))
            held = {name: rows(shape, rank // tensor, ranks // tensor) for name, shape in held.items()}
        stepped = greedy(everything, ranks)[rank] if way == "zero1" else held
        kept = sum(map(values, held.values()))
        of_ranks.append({"parameters": FLOAT32.parameter * kept, "gradients": FLOAT32.gradient * kept,
                         "optimizer state": sum(FLOAT32.state * values(held[name]) + 4 for name in stepped),
                         "activations": count_activations(model, way, rank, ranks, tensor, batch, micro_batches),
                         MOMENT: FLOAT32.parameter * gathered})
    return of_ranks


def count_activations(model, way, rank, ranks, tensor, batch, micro_batches):
    """Bytes, at most at one time: layers and, where the rank has the head, the loss with its log-probabilities."""
    layers, last, in_flight = model.layers, True, 1
    if way in ("gpipe", "1f1b"):  # 1F1B begins a backward as soon as it can: fewer micro-batches wait for theirs
        layers, last = len(stage_layers(layers, ranks)[rank]), rank == ranks - 1
        in_flight = micro_batches if way == "gpipe" else min(micro_batches, ranks - rank)
        batch //= micro_batches
    elif way != "one":
        batch //= ranks // tensor
    tokens, size = batch * model.sequence, FLOAT32.activation
    of_a_layer = activations(model, batch, tensor, dropout=False, size=size, stats=True)
    of_the_head = size * (tokens * (2 * model.hidden + 2 + model.vocabulary) + 1)  # 1: how many targets the mean is of
    return round(in_flight * (layers * of_a_layer + last * of_the_head))


def sent_by_fsdp(model, shards, copies=1, gathered=4):
    """{collective: bytes that each rank sends in a step} of FSDP2, in a ring, for `count`'s small transformer.

    Forward all-gathers all weights, `gathered` bytes each, and backward those of the blocks again: what stands outside
    of them stays. Gradients are reduce-scattered in float32. HSDP all-reduces each shard over the `copies`.
    Each rank's piece has as many rows as the first's: shorter ones are filled up.
    """
    padded = {name: shards * values(rows(shape, 0, shards)) for name, shape in model.tensors().items()}
    everything, blocks = sum(padded.values()), sum(size for name, size in padded.items() if name.startswith("blocks."))
    others = (shards - 1) / shards
    sizes = {"all_gather": gathered * (everything + blocks) * others,
             "reduce_scatter": FLOAT32.gradient * everything * others,
             "all_reduce": 2 * FLOAT32.gradient * everything / shards * (copies - 1) / copies}
    return {collective: round(size) for collective, size in sizes.items() if size}
