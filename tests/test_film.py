"""The film: what it records of a run, the trace that Perfetto opens, and the page."""

import json
import math

import pytest
import torch

from course import plots
from doctor import film
from gallery.table import read_table
from tests import runner

GALLERY = read_table()
MAIN = ["main.py", "--dataset", "synthetic", "--samples", 96, "--test-samples", 30, "--epochs", 2, "--batch-size", 16]
LENET = 62_006  # parameters


def filmed(ranks, path, script, *options, status=0, film_options=(), **env):
    """The trace of a run, as its file has it, and what the film said last."""
    done = runner.run(ranks, "doctor", "--film", path, *film_options, script, *options, script="-m", **env)
    assert done.returncode == status, done.stderr
    assert not list(path.parent.glob("*.rank*")) and not list(path.parent.glob("*.part"))
    return json.loads(path.read_text()), [line for line in done.stderr.splitlines() if line.startswith("film: ")]


@pytest.fixture(scope="module")
def of_main(tmp_path_factory):
    return filmed(2, tmp_path_factory.mktemp("film") / "run.json", *MAIN, film_options=["--steps", "1:4"])[0]


def strictly_read(trace):
    """The spans of a Chrome trace, track by track: each lies inside of another, or beside it."""
    named = {(event["pid"], event.get("tid")) for event in trace["traceEvents"] if event["ph"] == "M"}
    tracks = {}
    for event in trace["traceEvents"]:
        assert event["ph"] in "MXi" and isinstance(event["pid"], int) and isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and (event["pid"], event["tid"]) in named
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        within = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while within and within[-1] <= begin:
                within.pop()
            assert not within or end <= within[-1], "spans overlap"
            within.append(end)
    return tracks


def test_a_film_is_a_trace_with_a_process_per_rank(of_main):
    tracks = strictly_read(of_main)
    assert {rank for rank, _ in tracks} == {0, 1}
    names = {event["name"] for event in of_main["traceEvents"] if event["ph"] == "X"}
    assert {"data", "forward", "backward", "update", "all_reduce", "broadcast", "wait"} <= names


def test_messages_have_both_ends_their_bytes_and_their_line(of_main):
    messages = of_main["film"]["messages"]
    ends = {}
    for message in messages:
        assert message["end"] >= message["t"] and message["members"] == [0, 1]
        ends.setdefault(message["key"], []).append((message["rank"], message["name"], message["bytes"]))
    assert all([rank for rank, *_ in both] == [0, 1] and both[0][1:] == both[1][1:] for both in ends.values())
    gradients = [message for message in messages if message["name"] == "all_reduce" and message["bytes"] == 4 * LENET]
    assert [message["step"] for message in gradients] == [1, 2, 3] * 2
    assert {message["where"].partition(":")[0] for message in gradients} == {"main.py"}


def test_of_the_asked_steps_there_are_loss_gradients_and_values(of_main):
    steps = of_main["film"]["steps"]
    assert sorted((step["rank"], step["step"]) for step in steps) == [(rank, step) for rank in (0, 1)
                                                                      for step in (1, 2, 3)]
    assert {span["step"] for span in of_main["film"]["spans"]} == {1, 2, 3}
    assert all(math.isfinite(step["loss"]) and len(step["gradients"]) == len(step["values"]) > 4 for step in steps)
    assert of_main["film"]["parted"] == of_main["film"]["missing"] == []
    assert all(rank["ended"] == "done" for rank in of_main["film"]["ranks"])


def test_a_rank_that_waits_computes_nothing_in_the_picture():
    spans = [{"rank": rank, "step": 0, "lane": lane, "name": name, "t": 1000 * begin, "d": 1000 * length}
             for rank, lane, name, begin, length in [
                 (0, "compute", "forward", 0, 10), (0, "compute", "backward", 10, 10), (0, "wait", "wait", 2, 3),
                 (0, "wait", "wait", 8, 4), (1, "compute", "forward", 0, 10)]]
    film = {"spans": spans, "messages": [], "ranks": [{"rank": 0, "end": 20_000}, {"rank": 1, "end": 20_000}]}
    ax = plots.lanes(film)
    assert {label.get_text().partition("\n")[0] for label in ax.get_yticklabels()} == {"rank 0", "rank 1"}
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]
    assert sorted(bars) == [(0, 2), (0, 10), (2, 5), (5, 8), (8, 12), (12, 20)]


@pytest.mark.weekly
@pytest.mark.parametrize("name", ["other_weights", "ddp_module"])
def test_ranks_part_in_the_broken_program_and_not_in_the_repaired_one(name, tmp_path):
    films = {}
    for form in ("broken", "repaired"):
        (tmp_path / f"{name}.py").write_text(GALLERY[name].text(form))
        trace, said = filmed(2, tmp_path / f"{form}.json", tmp_path / f"{name}.py")
        films[form] = trace["film"]["parted"]
        assert len(said) == 1 + bool(films[form])
    first = films["broken"][0]
    assert (first["step"], first["tensor"], first["ranks"]) == (0, "weight", [[0], [1]])
    assert films["repaired"] == []


SOUND = """
import time, torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
for update in range(3):
    optimizer.zero_grad()
    with model.no_sync():
        model(torch.randn(6, 4)).square().mean().backward()
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
until = time.time() + 4 * (dist.get_rank() == 0)
while time.time() < until:  # rank 0 computes for longer than --timeout, and nothing is recorded any more
    pass
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.weekly
def test_a_sound_program_has_no_difference_and_a_long_one_is_no_hang(tmp_path):
    (tmp_path / "sound.py").write_text(SOUND)
    trace, _ = filmed(2, tmp_path / "run.json", tmp_path / "sound.py", film_options=["--steps", 2, "--timeout", 2])
    recorded = trace["film"]
    assert sorted((step["rank"], step["step"]) for step in recorded["steps"]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert recorded["parted"] == [] and recorded["missing"] == []
    assert {"1.running_mean", "1.running_var"} <= set(recorded["steps"][0]["buffers"])


def test_a_hang_ends_and_the_film_has_who_waits(tmp_path):
    (tmp_path / "hang.py").write_text(GALLERY["hang_rank_0"].text("broken"))
    done = runner.torchrun(2, "doctor", "--film", tmp_path / "run.json", "--timeout", 3, tmp_path / "hang.py",
                           script="-m")
    assert done.returncode == 1, done.stderr
    [missing] = json.loads((tmp_path / "run.json").read_text())["film"]["missing"]
    assert [(call["rank"], call["name"]) for call in missing["waiting"]] == [(0, "all_reduce"), (1, "barrier")]
    assert "hang.py:" in missing["waiting"][0]["where"]


@pytest.mark.weekly
def test_a_rank_that_is_killed_leaves_its_part_and_the_others_put_all_together(tmp_path):
    (tmp_path / "dies.py").write_text("import os, signal, torch, torch.distributed as dist\n"
                                      "dist.init_process_group('gloo')\n"
                                      "dist.all_reduce(torch.ones(3))\n"
                                      "signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the test's launcher sends it\n"
                                      "if dist.get_rank() == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
                                      "dist.all_reduce(torch.ones(3))\n")
    trace, _ = filmed(2, tmp_path / "run.json", tmp_path / "dies.py", status=-9)
    strictly_read(trace)
    assert [rank["ended"][:6] for rank in trace["film"]["ranks"]] == ["killed", "Runtim"]
    [missing] = trace["film"]["missing"]
    assert missing["absent"] == [0]


@pytest.mark.weekly
def test_send_and_recv_know_their_other_end(tmp_path):
    (tmp_path / "pair.py").write_text("import torch, torch.distributed as dist\n"
                                      "dist.init_process_group('gloo')\n"
                                      "rank, group = dist.get_rank(), dist.new_group([1, 2])\n"
                                      "if rank == 0: dist.send(torch.ones(5), 2)\n"
                                      "if rank == 2: dist.recv(torch.ones(5), 0)\n"
                                      "if rank: dist.all_reduce(torch.ones(2), group=group)\n"
                                      "dist.destroy_process_group()\n")
    trace, _ = filmed(3, tmp_path / "run.json", tmp_path / "pair.py")
    ends = [(message["rank"], message["name"], message["members"], message["bytes"])
            for message in trace["film"]["messages"] if message["name"] in ("send", "recv", "all_reduce")]
    assert ends == [(0, "send", [0, 2], 20), (1, "all_reduce", [1, 2], 8), (2, "recv", [0, 2], 20),
                    (2, "all_reduce", [1, 2], 8)]
    assert trace["film"]["missing"] == [] and all(message["end"] for message in trace["film"]["messages"])


@pytest.mark.weekly
def test_a_pipeline_has_a_film(tmp_path):
    (tmp_path / "pipeline.py").write_text("""
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = torch.nn.Linear(8, 8)
schedule = Schedule1F1B(PipelineStage(layers, rank, 2, torch.device("cpu")), 4, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for update in range(3):
    schedule.step(torch.ones(8, 8)) if rank == 0 else schedule.step(target=torch.zeros(8, 8))
    optimizer.step()
dist.destroy_process_group()
""")
    trace, _ = filmed(2, tmp_path / "run.json", tmp_path / "pipeline.py")
    strictly_read(trace)
    of_step = [each for each in trace["film"]["messages"] if each["step"] == 1]
    ends = [(each["rank"], each["name"]) for each in of_step]  # a micro-batch's output goes on, its gradient back
    assert all(ends.count((rank, name)) == 4 for rank in (0, 1) for name in ("send", "recv"))
    assert all(each["end"] for each in of_step)
    spans = [(each["rank"], each["name"]) for each in trace["film"]["spans"] if each["step"] == 1]
    assert spans.count((0, "forward")) == spans.count((1, "backward")) == 4
    assert trace["film"]["missing"] == []


@pytest.mark.weekly
def test_sharded_weights_have_a_film_too(tmp_path):
    small = ["--updates", 3, "--report", 3, "--batch", 12, "--width", 16, "--context", 8, "--save", tmp_path / "x.pt"]
    trace, _ = filmed(2, tmp_path / "run.json", "examples/minimal_gpt_ddp.py", "--fsdp", *small)
    strictly_read(trace)
    assert trace["film"]["parted"] == trace["film"]["missing"] == []
    assert {"all_gather", "reduce_scatter"} <= {message["name"] for message in trace["film"]["messages"]}


def test_two_digests_are_alike_up_to_rounding_and_tell_an_order_from_another():
    assert film.alike([1.0, 2.0], [1.0 + 1e-8, 2.0], 1e-6) and not film.alike([1.0, 2.0], [1.001, 2.0], 1e-6)
    assert film.alike(["nan", "nan"], ["nan", "nan"], 0) and not film.alike(["nan", "nan"], [1.0, 2.0], 1)
    one = film.Film.__new__(film.Film)
    one.vectors, one.own, one.step, one.pending = {}, 0, 0, []
    found = one.digests({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0, 1.0]), "c": torch.tensor([torch.nan])})
    assert not film.alike(found["a"], found["b"], 1e-6) and found["a"][1] == found["b"][1] and found["c"][0] == "nan"


@pytest.mark.parametrize("words", [
    ["--film", "run.txt", "x.py"], ["--film", "folder.json", "x.py"],
    ["--film", "/no/folder/run.json", "x.py"], ["--film", "run.json"],
    ["--film", "run.json", "--json", "y.json", "x.py"], ["--film", "run.json", "--steps", "3:1", "x.py"],
    ["--steps", "3:8", "x.py"], []])
def test_bad_words_are_one_line(words, tmp_path, monkeypatch, doctor_ended):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    (tmp_path / "folder.json").mkdir()
    status, _, errors = doctor_ended(*words)
    assert status == 2 and len(errors.splitlines()) == 1


def test_an_older_torch_is_refused_in_one_line(tmp_path, monkeypatch, doctor_ended):
    monkeypatch.delattr(torch.distributed.ProcessGroup, "register_pre_hook")
    (tmp_path / "x.py").touch()
    status, _, errors = doctor_ended("--film", tmp_path / "run.json", tmp_path / "x.py")
    assert status == 2 and "2.14" in errors
    assert list(tmp_path.glob("run*")) == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_steps_and_shows_a_message_s_other_end(width, of_main, open_page, tmp_path):
    (tmp_path / "run.html").write_text(film.page(of_main["film"]))
    page = open_page((tmp_path / "run.html").as_uri(), tmp_path.as_uri(), viewport={"width": width, "height": 800})
    assert page.locator("#where").inner_text() == "step 2"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # there is none behind it
    assert page.locator("#where").inner_text() == "step 3"
    page.locator("svg .message").first.click()
    assert page.locator("#message tr").count() == 3 and page.locator("svg .picked").count() >= 1
    assert page.locator("#part").is_disabled()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_the_page_says_where_two_films_part(of_main, open_page, tmp_path):
    other = json.loads(json.dumps(of_main))
    for step in other["film"]["steps"]:
        if step["step"] >= 2:
            step["values"]["fc1.weight"][0] += 1
    (tmp_path / "run.html").write_text(film.page(of_main["film"]))
    (tmp_path / "other.json").write_text(json.dumps(other))
    page = open_page((tmp_path / "run.html").as_uri(), tmp_path.as_uri())
    page.set_input_files("#other", tmp_path / "other.json")
    page.wait_for_function("document.getElementById('found').innerText.includes('fc1.weight')")
    assert "from step 2 on" in page.locator("#found").inner_text()
    assert page.locator("#where").inner_text() == "step 2"
