"""Each process says who it is; rank 0 alone says how many there are."""


def my_hello(rank, world_size):
    print(f"hello from rank {rank}", flush=True)
    if rank == 0:
        print(f"world size {world_size}", flush=True)
