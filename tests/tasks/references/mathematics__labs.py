"""The witness of the best known value of mathematics/labs."""


SIGNS = "---++++---+---+---+--+-++-+"


def run():
    return [1 if sign == "+" else -1 for sign in SIGNS]
