TITLE = "Who gets which item"
TASK = """Each epoch all ranks shuffle the same <code>n</code> items alike, and each rank takes a part. Return the list
of this rank's items. Every rank must get equally many, and every item must be somebody's. Where n cannot be divided,
repeat items from the beginning of the order. <code>torch.randperm(n,
generator=torch.Generator().manual_seed(seed)).tolist()</code> shuffles 0 to n − 1, for one seed always alike. Each
epoch needs another order."""
NAME, RANKS, FILE = "shard", (2, 3, 5), "shard.py"
SOLUTION = """
import torch


def shard(n, rank, world_size, epoch):
    # >>>
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()
    order += order[:-n % world_size]
    return order[rank::world_size]
    # <<<
"""
MISTAKES = [
    ([("    order += order[:-n % world_size]\n", "")],
     "Some ranks have an item more than others. They would train a step more and wait forever for the rest."),
    ([("torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()", "list(range(n))")],
     "Nothing is shuffled. Begin with torch.randperm, and the epoch as its seed."),
    ([("order[:-n % world_size]", "order[:world_size - n % world_size]")],
     "Eight items for two ranks: nothing is missing, so nothing may be repeated. -n % world_size is 0 then."),
    ([("manual_seed(epoch)", "manual_seed(0)")], "Every epoch has the same order: use the epoch as the seed."),
    ([("manual_seed(epoch)", "manual_seed(epoch + rank)")],
     "Each rank shuffles in another way, so some items are used twice and others never. The seed must be one for all."),
    ([("    order += order[:-n % world_size]\n", "    order = order[:n - n % world_size]\n")],
     "The last items of the order are nobody's. Repeat some from the beginning instead of dropping them."),
]
LEARNED = """DistributedSampler does the same, and forgetting <code>set_epoch</code> is the second mistake that this
puzzle knows. The file below works in the course's <code>mine/</code>."""


def items(ranks):
    return 8 if ranks == 2 else 7  # one number that can be divided


def judge(results, ranks):
    for rank, mine in enumerate(results):
        if not isinstance(mine, (list, tuple)):
            return "Rank %d returns %s, which is no list." % (rank, mine)
    counts = [len(each) for each in results]
    if len(set(counts)) > 1:
        return "The ranks get %s items." % " and ".join([str(count) for count in counts])
    n = items(ranks)
    missing = [item for item in range(n) if not any([item in each for each in results])]
    if missing:
        return "Nobody gets item %d." % missing[0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(ranks)).tolist()
    order += order[:-n % ranks]
    if results not in ([order[rank::ranks] for rank in range(ranks)],
                       [order[rank * counts[0]:(rank + 1) * counts[0]] for rank in range(ranks)]):
        return "In epoch %d the order should be %s, shared in turns or in blocks." % (ranks, order)
    return None


def case(ranks):
    n = items(ranks)
    wanted = "n = %d: equally many items for each rank, and each of 0 to %d with some rank." % (n, n - 1)
    return [[n, rank, ranks, ranks] for rank in range(ranks)], [wanted] * ranks
