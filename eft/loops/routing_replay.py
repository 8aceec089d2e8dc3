"""Searches played again from recorded steps, with a policy that chooses the mutator of every step. Off-policy.

`simulate` is run in two places: inside the sandbox, beside the policy's process, and out here, where the value is worked
out from the choices. So it is standard library only and imports nothing of this package; `step_state` is handed to it.

What it assumes (and a live search may break): what an edit does to the score depends on the task, on the mutator and on
how good the program in hand is, and on nothing else; a step takes the best program so far; a recorded change of the
score happens again from a program whose score is near. Every recorded step is used once in a game before any is used
again, nearest scores first. Nothing gets better than the best that was recorded.
"""

from __future__ import annotations


def simulate(choose, game, number, step_state):
    """Play `game` for the `number`-th time. Returns (choices, steps): the mutators' names, and what came of each step.

    choose: state -> name. game: a dict with task, domain, arms, budget, start (the start program's score), ceiling, size
    and steps, by arm: a list of [before, after or None, cost, size].
    """
    best, size, choices, steps = game["start"], game["size"], [], []
    used = {arm: set() for arm in game["arms"]}
    for _ in range(game["budget"]):
        state = step_state(game["task"], game["domain"], game["arms"], game["budget"], game["start"], size, steps)
        arm = choose(state)
        choices.append(arm)
        if arm not in used:  # no mutator of this game: said by the one who scores
            steps.append({"arm": arm, "before": best, "after": None, "cost": 0.0})
            continue
        change, cost, grown = outcome(game, number, used, arm, best)
        after = None if change is None else min(best + change, game["ceiling"])
        steps.append({"arm": arm, "before": best, "after": after, "cost": cost})
        if after is not None and after > best:
            best, size = after, grown
    return choices, steps


def outcome(game, number, used, arm, best):
    """The recorded step of `arm` that comes next: (change of the score or None, cost, size of the program)."""
    recorded = game["steps"][arm]
    if len(used[arm]) == len(recorded):
        used[arm].clear()
    near = nearest(game, number, used[arm], arm, best)
    used[arm].add(near)
    before, after, cost, size = recorded[near]
    return (None if after is None else after - before), cost, size


def nearest(game, number, used, arm, best):
    """The place of an unused step whose program was about as good; among the three nearest, one by lot."""
    recorded = game["steps"][arm]
    left = [i for i in range(len(recorded)) if i not in used]
    left.sort(key=lambda i: (abs(recorded[i][0] - best), lot(number, arm, i)))
    return min(left[:3], key=lambda i: lot(number, arm, i))


def lot(number, arm, place):
    """A number that looks random, the same on every machine."""
    value = (number + 1) * 2654435761 + place * 40503 + sum(map(ord, arm)) * 69069
    for _ in range(3):
        value = (value ^ (value >> 15)) * 2246822519 & 0xFFFFFFFF
    return value


def gap(game, steps):
    """Which share of the way from the start to the best recorded score the steps went."""
    best = max([game["start"], *(s["after"] for s in steps if s["after"] is not None)])
    return (best - game["start"]) / (game["ceiling"] - game["start"])
