"""A second job starts on a machine where one runs already. Both were told the same port."""

import os
import socket

import torch.distributed as dist

first_job = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
port = first_job.port  # as when MASTER_PORT=29500 is copied from one job's script to the next
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
try:
    dist.init_process_group("gloo")
except RuntimeError:
    with socket.create_connection(("127.0.0.1", port), timeout=5):  # `ss -ltnp` would name the process
        print(f"somebody answers at port {port}", flush=True)
    raise
print("the second job has begun")
dist.destroy_process_group()
