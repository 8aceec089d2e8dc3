"""The witness of the best known value of strings/lz_parse.

Ours: the bits that a copy saves, and what may follow, with constants tuned by random search and Nelder-Mead.
"""

C = (5.04138, 0.760444, 1.93327, -0.0747204, 0.0476094, -0.116847)


def worth(length, distance, after):
    saved = C[0] * length - 1 - C[1] * (length - 1).bit_length() - C[2] * distance.bit_length()
    return saved + C[3] * min(after, 12) + C[4] * (after > 1) + C[5] * length * length
