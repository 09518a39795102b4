"""One epoch of 256 samples. One process trains with a batch of 32; so should two ranks."""

import torch
import torch.distributed as dist


def train(samples, batch_size, rank=0, ranks=1):
    """Least squares by SGD: (weights, samples an update, updates)."""
    weights, updates = torch.zeros(4, requires_grad=True), 0
    mine = samples[rank::ranks]
    for batch in mine.split(batch_size):
        loss = ((batch[:, :4] @ weights - batch[:, 4]) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        if ranks > 1:  # what DDP does in backward()
            dist.all_reduce(gradient)
        with torch.no_grad():
            weights -= 0.1 * gradient / ranks
        updates += 1
    return weights.detach(), batch_size * ranks, updates


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
samples = torch.randn(256, 4) @ torch.randn(4, 5)
batch_size = 32
one, two = train(samples, 32), train(samples, batch_size, rank, ranks)
if rank == 0:
    for name, (_, size, updates) in (("1 process", one), (f"{ranks} ranks", two)):
        print(f"{name}: {size} samples an update, {updates} updates")
    print(f"weights differ by {(one[0] - two[0]).abs().max():.4f}")
dist.destroy_process_group()
