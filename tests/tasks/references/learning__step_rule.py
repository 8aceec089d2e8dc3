"""The witness of the best known value of learning/step_rule.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def step(gradient, last_step, time):
    rate = 0.1847739584 / (1 + 0.009295602231 * time) ** 0.9194424546
    move = -rate * gradient / (1 + 0.3585976876 * abs(gradient))
    agree = gradient * last_step
    if agree > 0:
        return 1.396082228 * move + 0.5966115741 * last_step
    return 1.467870618 * move + 0.3360961887 * last_step
