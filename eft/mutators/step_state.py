"""What a policy that chooses the mutator of a search's next step is told. Standard library only, no import of this
package: the replay of recorded steps runs it inside the sandbox, a live search outside, and both must say the same.

A step is a dict: arm (the mutator's name), before and after (the scores of the program that was shown and of its child;
after is None where there was no valid child), cost (seconds of asking).
"""

from __future__ import annotations

RECENT = 20  # steps of the history that a policy is shown


def step_state(task, domain, arms, budget, start, size, steps):
    """The state before the step len(steps) + 1. Scores are told as ratios to the start program's, so 1.0 is the start.

    task, domain, mutators   names
    budget, step, left       steps in all, done, left
    size                     characters of the program in hand (0: not known)
    history                  best score after each of the latest 20 steps
    best, stagnation         best score so far; steps since it last rose
    past                     by mutator: tried, valid, improved (children better than their parents), raised (the best
                             score rose), gain (by how much in all), cost (seconds of a step, mean), since (steps since
                             it was last used; the number of steps where it never was)
    """
    unit = abs(start) if start else 1.0
    best, stagnation, history = start, 0, []
    past = {
        arm: {"tried": 0, "valid": 0, "improved": 0, "raised": 0, "gain": 0.0, "cost": 0.0, "since": len(steps)}
        for arm in arms
    }
    for i, step in enumerate(steps):
        own = past.get(step["arm"])
        stagnation += 1
        rise = 0.0
        if step["after"] is not None and step["after"] > best:
            rise = step["after"] - best
            best, stagnation = step["after"], 0
        if own is not None:
            own["tried"] += 1
            own["since"] = len(steps) - 1 - i
            own["cost"] += (step["cost"] - own["cost"]) / own["tried"]
            if step["after"] is not None:
                own["valid"] += 1
                own["improved"] += step["after"] > step["before"]
                own["raised"] += rise > 0
                own["gain"] = round(own["gain"] + rise / unit, 6)
        history.append(round(1.0 + (best - start) / unit, 6))
    for own in past.values():
        own["cost"] = round(own["cost"], 3)
    return {
        "task": task,
        "domain": domain,
        "mutators": list(arms),
        "budget": budget,
        "step": len(steps),
        "left": budget - len(steps),
        "size": size,
        "history": history[-RECENT:],
        "best": history[-1] if history else 1.0,
        "stagnation": stagnation,
        "past": past,
    }
