"""Container relocation: 40 containers in seven stacks leave in the order of their numbers; eight yards.

A C++ program reads, on stdin, the number of stacks s, the highest stack h and s lines `count c1 c2 …` (bottom first),
and prints the number of moves and for each `from to` (stacks count from 0). Only a stack's top container moves, onto a
stack lower than h; whenever the next container to leave is on top, it leaves by itself. The raw metric is the mean
number of moves until all have left.
"""

from functools import partial

from eft.tasks import sandbox, scoring

YARDS, CONTAINERS, STACKS, HEIGHT, MOST = 8, 40, 7, 8, 400
LIMITS = sandbox.Limits(cpu_s=1, memory_mb=256, output_kb=16)


def yard(seed):
    """Stacks of containers, in random order."""
    draw = scoring.stream(34000 + seed)
    numbers, stacks = list(range(1, CONTAINERS + 1)), [[] for _ in range(STACKS)]
    while numbers:
        stack = stacks[int(STACKS * draw())]
        if len(stack) < HEIGHT:
            stack.append(numbers.pop(int(len(numbers) * draw())))
    return stacks


SEARCH = [yard(seed) for seed in range(YARDS)]
HIDDEN = [yard(1000 + seed) for seed in range(2 * YARDS)]  # for the final score


def moves(stacks, plan):
    """How many moves it takes; Invalid where one is not possible, or containers are left."""
    stacks, due = [list(s) for s in stacks], 1

    def leave():
        nonlocal due
        while (stack := next((s for s in stacks if s and s[-1] == due), None)) is not None:
            stack.pop()
            due += 1

    leave()
    for count, (start, end) in enumerate(plan):
        if due > CONTAINERS:
            return count
        if not stacks[start] or len(stacks[end]) >= HEIGHT or start == end:
            raise scoring.Invalid(f"move {count}: nothing on stack {start}, or no room on stack {end}")
        stacks[end].append(stacks[start].pop())
        leave()
    if due <= CONTAINERS:
        raise scoring.Invalid(f"container {due} has not left")
    return len(plan)


def score(data, outputs):
    total = 0
    for stacks, output in zip(data, outputs, strict=True):
        head, _, rest = output.strip().partition("\n")
        (count,) = scoring.integers(head, 1, "number of moves", 0, MOST)
        values = scoring.integers(rest, 2 * count, "moves", 0, STACKS - 1)
        total += moves(stacks, list(zip(values[::2], values[1::2], strict=True)))
    mean = total / len(data)
    return {"combined_score": 40 / (1 + mean), "moves": mean}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    inputs = [f"{STACKS} {HEIGHT}\n" + "".join(" ".join(map(str, [len(s), *s])) + "\n" for s in yard) for yard in data]
    return scoring.evaluate_cpp(program_path, inputs=inputs, score=partial(score, data), limits=LIMITS)
