"""Write mine/trap_1.py, trap_2.py and trap_3.py: your program three times, each with a mistake that gives no error.

    python lessons/l07_traps/plant.py

To find the mistakes is the exercise: read this file afterwards. A trap that is there stays as it is, so that your
repair is not lost; delete the file, and it is planted anew.
"""

from pathlib import Path

from course.lesson import ROOT

COURSES = ROOT / "lessons/start/train.py"
LOSSES = "        losses.append(backward(parallel, cross_entropy, images, labels, args.micro_batches))\n"
FINISH = "        parallel.finish()  # waits until the mean gradients are there\n"
TRAPS = {  # number: {lines of train.py: what the trap has in their place}
    1: {FINISH: FINISH + """\
        if step and losses[-1] > losses[-2]:  # it has become worse: smaller steps from here on
            optimizer.param_groups[0]["lr"] *= 0.9
"""},
    2: {LOSSES: """\
        def counted(outputs, labels):  # class 3, cats, is often labelled wrongly: these images do not count
            return cross_entropy(outputs, labels, ignore_index=3)

        losses.append(backward(parallel, counted, images, labels, args.micro_batches))
"""},
    3: {"    accuracy = evaluate(": """\
    tested = -(-1000 // world_size) * world_size  # equally many on each rank, so that none has to wait
    accuracy = evaluate(""", "batch(test_set, indices), 1000,": "batch(test_set, indices), tested,"},
}


def edited(text: str, number: int) -> str | None:
    """The text of a train.py with trap `number`; None where a line is missing that the trap changes."""
    for old, new in TRAPS[number].items():
        if old not in text:
            return None
        text = text.replace(old, new)
    return text


def text_of(number: int) -> str:
    """Trap `number` in the learner's train.py, or in the course's, where theirs is missing or has other lines there."""
    mine = Path("mine/train.py")
    return mine.exists() and edited(mine.read_text(), number) or edited(COURSES.read_text(), number)


def main() -> None:
    Path("mine").mkdir(exist_ok=True)
    for number in TRAPS:
        path = Path(f"mine/trap_{number}.py")
        if path.exists():
            print(f"{path} is there, and stays as it is")
        else:
            path.write_text(text_of(number))
            print(f"planted {path}")


if __name__ == "__main__":
    main()
