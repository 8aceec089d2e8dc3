"""The witness of the best known value of mathematics/kissing."""


def run():
    """The roots of E7: 14 unit vectors, and 16 sign patterns on each of the 7 words of weight 4 of the Hamming code."""
    vectors = []
    for j in range(7):
        for sign in (1, -1):
            vectors.append([sign * (i == j) for i in range(7)])
    for k in range(3**7):
        vector = [k // 3**j % 3 - 1 for j in range(7)]
        syndrome = 0
        for j in range(7):
            if vector[j]:
                syndrome ^= j + 1
        if syndrome == 0 and sum(map(abs, vector)) == 4:
            vectors.append(vector)
    return vectors
