"""A transformer small enough for a CPU, text for it, and a count of the bytes that a rank holds.

It learns this repository's LICENSE by heart. Its vocabulary is 97 characters, a number that
2, 3 and 4 do not divide.
"""

import weakref
from collections import Counter
from pathlib import Path
from types import FunctionType, ModuleType

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, gelu
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from course import memory

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
LETTERS = "".join(map(chr, range(32, 127))) + "\n"  # and one for all others
SHAPE = memory.Transformer(layers=4, hidden=48, heads=12, sequence=32, vocabulary=len(LETTERS) + 1)
BATCH = 24  # sequences a step, of all ranks together: 2, 3 and 4 ranks can share them
# Where a gradient is nearly 0, Adam divides one rounding error by another, and so magnifies it. Its usual eps, 1e-8,
# lets more of that through than a comparison can bear.
ADAM = {"lr": 3e-3, "eps": 1e-6}


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm: [b, s, h] to [b, s, h]. A rank of TP has some of the heads."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)
        self.of_a_head = hidden // heads

    def forward(self, x):
        y = self.norm1(x)
        query, key, value = (part(y).unflatten(2, (-1, self.of_a_head)).transpose(1, 2)  # [b, heads, s, of a head]
                             for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / self.of_a_head**0.5
        later = scores.new_full(scores.shape[2:], -torch.inf).triu(1)
        mixed = (scores + later).softmax(3) @ value
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class TinyTransformer(nn.Module):
    """Tokens [b, s] to logits [b, s, vocabulary]. A pipeline stage is one from which the other stages' parts are taken
    away (None, or fewer blocks): the names of its parameters stay those of the whole. float32."""

    def __init__(self, shape=SHAPE):
        super().__init__()
        self.position = nn.Parameter(torch.randn(shape.sequence, shape.hidden) / 10)
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleDict({str(i): Block(shape.hidden, shape.heads) for i in range(shape.layers)})
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x) + self.position
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))

    def keep_stage(self, stage, stages):
        """Take away what is not this pipeline stage's."""
        layers = memory.stage_layers(len(self.blocks), stages)[stage]
        self.blocks = nn.ModuleDict({name: block for name, block in self.blocks.items() if int(name) in layers})
        if stage > 0:
            self.embedding = self.position = None
        if stage < stages - 1:
            self.norm = self.head = None


def loss_of(logits, targets):
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())  # float32, whatever the logits are


def batches(steps, shape=SHAPE):
    """`steps` pairs (tokens, the tokens that follow), int64 [BATCH, sequence], cut from the text at random places."""
    text = TEXT.read_text(encoding="utf-8")
    tokens = torch.tensor([LETTERS.find(letter) % shape.vocabulary for letter in text])  # -1, not found: the last one
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - shape.sequence, (BATCH, 1), generator=random)
        places = starts + torch.arange(shape.sequence)
        yield tokens[places], tokens[places + 1]


# ------------------------------------------------------------------------------------------------ counting


def plain(tensor):
    """The tensor that this rank really has: of a DTensor its own piece."""
    while is_traceable_wrapper_subclass(tensor):
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor


def bytes_of(tensors):
    """Bytes of the values that this rank has of the tensors."""
    return sum(plain(tensor).nbytes for tensor in tensors)


class SavedForBackward(saved_tensors_hooks):
    """Within `with`: the bytes that autograd keeps for backward, `now` and at `most`; `gathered`: the most bytes of
    weights that are here at one time, beyond what the rank keeps of them, when forward or backward uses one.

    Weights are no activations, and neither are whole numbers (tokens, masks). Memory that two operations keep counts
    once. What is kept elsewhere is not seen: a pipeline stage's output that waits to be sent, say.
    """

    def __init__(self, model):
        self.model, self.held, self.now, self.most, self.gathered = model, Counter(), 0, 0, 0
        self.at_rest = {name: plain(weight).shape for name, weight in model.named_parameters()}
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        weights = self.weights_now()
        # Detached: an operation's own result would hold the operation, which holds this, for ever.
        kept, storage = tensor.detach(), plain(tensor).untyped_storage()
        is_weight = any(weight.untyped_storage().data_ptr() == storage.data_ptr() for weight in weights)
        if tensor.is_floating_point() and not is_weight:
            self.count(storage, +1)
            weakref.finalize(kept, self.count, storage, -1)  # when backward has used it
        return kept

    def unpack(self, kept):
        self.weights_now()
        return kept

    def weights_now(self):
        """What this rank has of each weight at this moment; it notes the bytes of the gathered weights."""
        now = {name: plain(weight) for name, weight in self.model.named_parameters()}
        whole = [weight for name, weight in now.items() if weight.shape != self.at_rest[name]]
        self.gathered = max(self.gathered, bytes_of(whole))
        return now.values()

    def count(self, storage, by):
        before = self.held[storage.data_ptr()]
        self.held[storage.data_ptr()] += by
        if 0 in (before, before + by):  # the first to keep it, or the last to let go
            self.now += by * storage.nbytes()
            self.most = max(self.most, self.now)


def reached(thing, seen):
    """The tensors that an object keeps: in its attributes, and in their lists and dicts."""
    if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType | nn.Module):
        return
    seen[id(thing)] = thing
    if torch.is_tensor(thing):
        yield plain(thing)
        parts = [thing.grad] if thing.is_leaf else []
    elif isinstance(thing, dict):
        parts = [*thing, *thing.values()]
    else:
        parts = thing if isinstance(thing, list | tuple | set) else [getattr(thing, "__dict__", None)]
    for part in parts:
        yield from reached(part, seen)


def held(model, optimizer, saved):
    """{part: bytes} that this rank holds after a step within `saved`, a SavedForBackward. Of the optimizer all that it
    keeps, and the model does not."""
    parameters, gradients = list(model.parameters()), [parameter.grad for parameter in model.parameters()]
    of_model = {plain(tensor).untyped_storage().data_ptr() for tensor in parameters + gradients}
    kept = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in reached(optimizer, {})}
    state = sum(storage.nbytes() for place, storage in kept.items() if place not in of_model)
    return {"parameters": bytes_of(parameters), "gradients": bytes_of(gradients), "optimizer state": state,
            "activations": saved.most, memory.MOMENT: saved.gathered}
