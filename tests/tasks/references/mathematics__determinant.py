"""The witness of the best known value of mathematics/determinant."""


SIGNS = """
-+++-+-++---+-+
---+++--+--+---
+-+-++-+-+--+--
-------+-++---+
++-++-+++++----
-+--+++-++-++-+
++-++-----+++-+
--++++-++++++++
+++-----++++---
--++--++-+-++--
-+-+-+---++-++-
-+--+--++--+++-
--+-+-+-+-+-+--
-++++----+---++
-++-++++--++---
"""


def run():
    return [[1 if sign == "+" else -1 for sign in line] for line in SIGNS.split()]
