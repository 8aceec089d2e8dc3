"""Control of three damped masses on springs that follow a moving target: mean squared error plus the cost of force.

The measured position is one step old, force is bounded. The candidate hands back its forces; the motion is computed
again here. Hidden runs have other masses, springs and targets.
"""

import math

from eft.tasks import scoring

STEPS, DT, BOUND = 150, 0.1, 8.0
# mass, damping, stiffness
PLANTS = ((1.0, 0.4, 1.0), (1.5, 0.8, 0.5), (0.7, 0.3, 2.0))
HIDDEN_PLANTS = ((1.2, 0.6, 0.8), (0.85, 0.35, 1.6), (1.35, 0.5, 1.2), (0.9, 0.7, 0.6))

MOVE = f"""
def move(plant, state, force, push):
    mass, damping, stiffness = plant
    x, v = state
    force = min(max(force, -{BOUND}), {BOUND})
    v += {DT} * (force + push - damping * v - stiffness * x) / mass
    return x + {DT} * v, v
"""

DRIVER = f"""
def drive(control, runs, move):
    scope = {{}}
    exec(move, scope)
    states = [[(0.0, 0.0), 0.0, 0.0, None, []] for _ in runs]  # position and speed, seen, total, last error, plan
    for k in range({STEPS}):
        calls = []
        for (_, targets, _), state in zip(runs, states):
            error = targets[k] - state[1]
            state[2] += error * {DT}
            calls.append([error, state[2], 0.0 if state[3] is None else (error - state[3]) / {DT}, targets[k]])
            state[3], state[1] = error, state[0][0]
        for (plant, _, pushes), state, answer in zip(runs, states, control.many(calls)):
            force = float(answer)
            state[4].append(force)
            state[0] = scope["move"](plant, state[0], force, pushes[k])
    return [state[4] for state in states]
"""


def run(plant, seed):
    """A plant, its target (steps and a slow wave) and pushes from outside."""
    draw = scoring.stream(9000 + seed)
    targets, pushes, level = [], [], 0.0
    for k in range(STEPS):
        if k % 50 == 5:
            level = 3 * draw() - 1
        targets.append(level + 0.3 * math.sin(k / 15))
        pushes.append(0.8 * math.sin(k / 23 + seed) + 0.6 * (draw() - 0.5))
    return plant, targets, pushes


SEARCH = [run(plant, seed) for seed, plant in enumerate(PLANTS)]
HIDDEN = [run(plant, 10 + seed) for seed, plant in enumerate(HIDDEN_PLANTS)]
_scope: dict = {}
exec(MOVE, _scope)
move = _scope["move"]


def score(value, runs):
    if not isinstance(value, list) or len(value) != len(runs):
        raise scoring.Invalid("one list of forces per run is needed")
    total = 0.0
    for (plant, targets, pushes), plan in zip(runs, value, strict=True):
        state, last = (0.0, 0.0), 0.0
        for target, push, force in zip(targets, pushes, scoring.numbers(plan, STEPS, "forces"), strict=True):
            force = min(max(force, -BOUND), BOUND)
            total += (target - state[0]) ** 2 + 0.002 * (force - last) ** 2
            state, last = move(plant, state, force, push), force
    cost = total / STEPS / len(runs)
    return {"combined_score": 0.5 / (0.1 + cost), "cost": cost}


def evaluate(program_path, hidden=False):
    runs = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path,
        entry="control",
        driver=DRIVER,
        apart=True,
        args=(runs, MOVE),
        score=lambda value: score(value, runs),
    )
