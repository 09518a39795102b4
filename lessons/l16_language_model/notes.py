"""What the exam's messages refer to: a note for each decision that it judges. `check.note("clip")` prints one."""

NOTES = {
    "crops": """
        If all ranks have the same generator and each takes all that is drawn, they compute the same crops, and nothing
        fails: the mean of equal gradients is that gradient. There are two ways out. With a seed for each rank the crops
        are random and different; nanoGPT does so. Or all ranks draw the same, and each takes a share. Only the second
        way can be compared with one process.

        More ranks with --batch crops each would be another training (lesson 09). Large trainings choose the tokens per
        update, often millions, and divide them: tokens = ranks x micro-batches x crops x context.
        """,
    "loss": """
        One process takes the mean over all targets of the update. Each target weighs 1 / count. On ranks, and in
        micro-batches, it must weigh the same. A mean over the targets of one rank, or of one micro-batch, gives those
        of a short one more weight.

        So add the losses up, and divide by the number of targets of the whole update. Where each rank knows all crops,
        it counts them itself. Where it knows only its own, an all_reduce of the counts comes before the first backward.

        DDP and FSDP then take the mean over the ranks: they divide by their number. Multiply the loss by it before
        backward. The loss that you print needs no such factor: it is the sum over the ranks.

        Adam hides a wrong factor. A gradient that is twice as long moves the weights as far, since Adam divides each
        value by its own usual size. That is why the exam compares gradients, in float64.

        Transformers had this mistake in its gradient accumulation until October 2024
        (https://huggingface.co/blog/gradient_accumulation).
        """,
    "clip": """
        clip_grad_norm_ shortens a gradient that is longer than args.clip. One rank has a rare crop and a long gradient,
        (3, 0). The other has a short one, (0, 0.4). The mean is (1.5, 0.2); clipped to length 1 it is (0.99, 0.13). If
        each is clipped first, the mean is (0.5, 0.2), which points elsewhere.

        One process clips the mean gradient of the whole batch. So on ranks the clip comes after the average, once per
        update. With DDP all ranks then clip the same gradient, and need no message. A sharded gradient needs one: each
        rank knows only its part of the norm. clip_grad_norm_ knows DTensors, and sends it.
        """,
    "no_sync": """
        The gradients of the micro-batches add up in .grad. Only their sum must travel. Within no_sync() DDP keeps
        still, also around the forward (lesson 07). The last backward(), outside of it, sends what all have added up.
        To send each time is right as well, and sends more.

        A sharded model has set_requires_gradient_sync(True or False). It saves messages, and costs memory: until the
        last micro-batch each rank keeps the whole gradient. Where memory is short, reduce each time.
        """,
    "validation": """
        Each rank judges a share of the held-out windows. Sums are added up over the ranks, and divided once (lesson
        05). With DDP the shares may have any length. With FSDP each forward gathers weights, so all ranks must call the
        model equally often, also where one of them has no windows left. Cut all windows into pieces of ROWS * ranks,
        and take every ranks-th window of each piece. A share may then be empty: a sum over nothing is 0.
        """,
    "rank 0": """
        Rank 0 prints, but what it prints must be true of all: reduce first, on every rank, then print on one. Whatever
        holds a collective (an all_reduce, a forward of a sharded model, the gathering of its weights) stands outside of
        `if rank == 0`. Rank 0 writes the file, with the names of the model inside the wrapper, so that GPT loads it. To
        resume, a file also needs the optimizer, the schedule and the state of `crops` (lesson 11).
        """,
}
