"""Control of three damped masses on springs that follow a moving target: mean squared error plus the cost of force.

The measured position is one step old, force is bounded. The candidate hands back its forces; the motion is computed
again here.
"""

import math

from eft.tasks import scoring

STEPS, DT, BOUND = 150, 0.1, 8.0
PLANTS = ((1.0, 0.4, 1.0), (1.5, 0.8, 0.5), (0.7, 0.3, 2.0))  # mass, damping, stiffness

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
    plans = []
    for plant, targets, pushes in runs:
        state, seen, total, last, plan = (0.0, 0.0), 0.0, 0.0, None, []
        for target, push in zip(targets, pushes):
            error = target - seen
            total += error * {DT}
            change = 0.0 if last is None else (error - last) / {DT}
            last, seen = error, state[0]
            force = float(control(error, total, change, target))
            plan.append(force)
            state = scope["move"](plant, state, force, push)
        plans.append(plan)
    return plans
"""


def run(seed):
    """A plant, its target (steps and a slow wave) and pushes from outside."""
    draw = scoring.stream(9000 + seed)
    targets, pushes, level = [], [], 0.0
    for k in range(STEPS):
        if k % 50 == 5:
            level = 3 * draw() - 1
        targets.append(level + 0.3 * math.sin(k / 15))
        pushes.append(0.8 * math.sin(k / 23 + seed) + 0.6 * (draw() - 0.5))
    return PLANTS[seed], targets, pushes


DATA = [run(seed) for seed in range(len(PLANTS))]
_scope: dict = {}
exec(MOVE, _scope)
move = _scope["move"]


def score(value):
    if not isinstance(value, list) or len(value) != len(DATA):
        raise scoring.Invalid("one list of forces per run is needed")
    total = 0.0
    for (plant, targets, pushes), plan in zip(DATA, value, strict=True):
        state, last = (0.0, 0.0), 0.0
        for target, push, force in zip(targets, pushes, scoring.numbers(plan, STEPS, "forces"), strict=True):
            force = min(max(force, -BOUND), BOUND)
            total += (target - state[0]) ** 2 + 0.002 * (force - last) ** 2
            state, last = move(plant, state, force, push), force
    cost = total / STEPS / len(DATA)
    return {"combined_score": 0.5 / (0.1 + cost), "cost": cost}


def evaluate(program_path):
    return scoring.evaluate(program_path, entry="control", driver=DRIVER, args=(DATA, MOVE), score=score)
