"""Each process says who it is; rank 0 alone says how many there are."""


def my_hello(rank, world_size):
    print("hello from rank", rank)
    if rank == 0:
        print("world size", world_size)
