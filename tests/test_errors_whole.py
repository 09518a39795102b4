"""An error keeps its whole text and its traceback, and stands where torch's record writes it."""

import json
import re

from course import rendezvous
from tests import runner

SMALL = ["--dataset", "synthetic", "--samples", 384, "--test-samples", 32, "--epochs", 2, "--device", "cpu"]


def failing(tmp_path, line):
    """A program whose model runs `line` on rank 1 in its second training step."""
    script = tmp_path / "fails.py"
    script.write_text(f"""import os, main, models
class Failing(models.ConvNet):
    passes = 0
    def forward(self, images):
        Failing.passes += 1
        if Failing.passes == 2 and os.environ.get("RANK", "1") == "1":
            {line}
        return super().forward(images)
models.MODELS["lenet"] = Failing
main.main()
""")
    return script


LONG = "the connection of layer 3 timed out in nccl " + 200 * "x" + "\\nits cause stands on the next line"


def test_an_error_of_the_users_model_is_not_taken_for_a_wait(tmp_path):
    script = failing(tmp_path, f'raise RuntimeError("{LONG}")')
    done = runner.run(0, *SMALL, script=script, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert done.returncode == 1 and "Traceback" in done.stderr and "waited in epoch" not in done.stderr
    assert LONG.replace("\\n", "\n") in done.stderr
    assert LONG.replace("\\n", "\n") in json.loads((tmp_path / "error.json").read_text())["message"]["message"]


def test_an_error_of_gloo_stands_beside_the_line_that_says_who_waited(tmp_path):
    port = rendezvous.free_port()
    waiting, _ = runner.together([{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                   "MASTER_PORT": str(port)} for rank in (0, 1)], *SMALL,
                                 script=failing(tmp_path, "os._exit(3)"))
    assert waiting.returncode == 1
    assert re.search(r"rank\(s\) 0 waited in epoch 0, step 2, at `[^`]*backward\(\)`; no word from rank\(s\) 1:",
                     waiting.stderr), waiting.stderr
    assert re.search(r"Traceback[\s\S]*RuntimeError: .*/gloo/", waiting.stderr), waiting.stderr


def test_by_default_what_registers_with_atexit_is_called_and_no_part_of_torch_is_replaced(tmp_path):
    script = tmp_path / "tracked.py"
    script.write_text("""import atexit, sys, main
atexit.register(lambda: print("flushed:", type(sys.modules["torch._dynamo"]).__name__,
                              hasattr(sys.modules["torch._dynamo"], "__file__")))
main.main()
""")
    done = runner.torchrun(0, *SMALL, "--strategy", "ddp", script=script, COURSE_SHORTCUTS=None,
                           PYTHONPATH=str(runner.ROOT))
    assert done.returncode == 0 and done.stdout == "flushed: module True\n", done.stdout + done.stderr
