# EVOLVE-BLOCK-START
RATE = 0.02
MOMENTUM = 0.3
DECAY = 0.05
BOOST = 0.5


def step(gradient, last_step, time):
    """Change of one coordinate in gradient descent; time counts from 0 to 24."""
    rate = RATE / (1 + DECAY * time)
    move = -rate * gradient
    move = move + MOMENTUM * last_step
    agree = gradient * last_step
    if agree < 0:
        move = move - BOOST * rate * gradient
    return move
# EVOLVE-BLOCK-END
