"""What lesson 10 says of variables, printed lines, rendezvous, consoles and Ray."""

import json

from lessons.l10_launchers import show as lesson_10
from lessons.l10_launchers.commands import launch_config


def test_variables_come_in_the_lesson_s_order_and_show_no_host_and_no_folder():
    told = {"ZZZ": "1", "MASTER_ADDR": "box", "TORCHELASTIC_ERROR_FILE": "/tmp/x/error.json", "RANK": "1",
            "TORCHELASTIC_RUN_ID": "a" * 36}
    rows = lesson_10.variables(told, {"box"})
    assert [row["rank 1"] for row in rows] == ["1", "this machine", "a" * 28 + "…", "…/error.json", "1"]
    assert rows[-1] == {"variable": "`ZZZ`", "says": "", "rank 1": "1"}


def test_a_line_that_holds_several_is_counted_for_each_call():
    screen = ["print: rank 0, step 0", "print: rank 1, step 0print: rank 2, step 0", "", "write: rank 1, step 1"]
    by_print, by_write = lesson_10.glued(screen)
    assert (by_print["lines printed"], by_print["lines on the screen"], by_print["of these hold several"]) == (3, 2, 1)
    assert by_print["for example"] == f"`{screen[1]}`"
    assert (by_write["lines printed"], by_write["of these hold several"], by_write["for example"]) == (1, 0, "–")


def test_what_torchrun_makes_of_its_options():
    static = launch_config("--nnodes=2 --node-rank=1 --master-addr=node0 --master-port=1234")
    assert lesson_10.rendezvous(static) == {"nodes": "2", "rendezvous": "static", "they meet at": "node0:1234",
                                            "name of the job": "none"}
    elastic = launch_config("--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=0123456789")
    assert lesson_10.rendezvous(elastic) == {"nodes": "1 to 2", "rendezvous": "c10d", "they meet at": "node0:29400",
                                             "name of the job": "01234567…"}


def test_attempts_begin_with_the_first_process():
    bars = lesson_10.attempts([{"rank": 1, "attempt": 0, "first_line": 5.0, "ready": 6.0, "end": "rank 1 fails"},
                               {"rank": 0, "attempt": 1, "first_line": 7.0, "ready": 8.5, "end": "rank 0 is done"}])
    assert [(bar["event"], bar["text"], bar["start"], bar["end"]) for bar in bars] == [
        ("attempt 0", "fails", 0, 1000), ("attempt 1", "is done", 2000, 3500)]


def test_a_console_is_cut_to_who_trains_and_the_epochs():
    console = "node0: mnist: 6 images\nnode0: lenet, ddp: 2 rank(s) x batch 32\nnode1: frame #1\nnode0: Epoch: 0, Loss"
    assert lesson_10.essential(console) == "node0: lenet, ddp: 2 rank(s) x batch 32\nnode0: Epoch: 0, Loss"


def test_it_is_said_which_run_is_shown():
    assert lesson_10.where(None, "x").startswith("Live")
    assert lesson_10.where("no Slurm", "x") == "**Recorded on another machine** (`x`), because no Slurm."
    assert lesson_10.where("no", "slurm-two-nodes/y").endswith("because no. There they trained on CIFAR-10.")


def test_ray_is_shown_beside_torchrun(tmp_path):
    def one(torchrun, ray):
        return {f"{name} {what} s": value + later for what, later in (("start", 0), ("whole", 1))
                for name, value in (("torchrun", torchrun), ("ray", ray))} | {
                    "ray / torchrun start": ray / torchrun, "ray / torchrun whole": (ray + 1) / (torchrun + 1)}

    file = tmp_path / "benchmark.json"

    def write(*rounds):
        file.write_text(json.dumps({"time": 1795495021.4, "machine": {"cores": 2}, "rounds": {"ray": rounds},
                                    "versions": {"torch": "2.14", "ray": "2.60"}}))

    write(one(4, 40), one(5, 100), one(3, 27))
    assert lesson_10.ray_start(file)[0] == {"round": 3, "torchrun, seconds": "3.00",
                                            "Ray Train, seconds": "27.00", "Ray / torchrun": "9.0"}
    assert [row["round"] for row in lesson_10.ray_start(file)] == [3, 1, 2]
    said = lesson_10.ray_where(file)
    assert said.startswith("Sorted by the ratio; its median is **10.0**. Recorded on 2026-11-24, on a machine with 2")
    assert "PyTorch 2.14, Ray 2.60" in said and said.endswith("took about 46 s.")
    for ray, order in ((4, 1), (8, 3), (40, 10), (60, 10), (80, 30), (900, 30)):
        write(one(4, ray))
        assert lesson_10.ray_order(file) == order
    assert lesson_10.ray_where(file).startswith("Recorded on 2026-11-24"), "one round has no median"
