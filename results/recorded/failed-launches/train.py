import torch
import torch.distributed as dist

dist.init_process_group("gloo")
images = torch.randn(8, 1, 28, 28)
labels = torch.arange(8) + 4 * dist.get_rank()
loss = torch.nn.functional.cross_entropy(torch.nn.Linear(784, 10)(images.flatten(1)), labels)
loss.backward()
print("rank", dist.get_rank(), loss.item())
dist.barrier()
