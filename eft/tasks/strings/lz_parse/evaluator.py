"""Parsing a text for an LZ77 coder: which earlier copy to refer to, if any; six texts of 360 characters, greedily.

At each place the candidate sees the copies that it could refer to (for each distance class the longest) and takes the
one with the largest worth(length, distance, after), or the plain character where none is worth more than 0 (after: the
longest copy that could follow). The candidate hands back (length, distance) pairs, (1, 0) for a plain character. The
raw metric is the bits per character: a plain character costs 1 + 5 bits, a copy 1 + Elias-gamma codes of length - 1
and distance.
"""

from functools import partial

from eft.tasks import scoring

TEXTS, CHARACTERS = 6, 360

DRIVER = """
def drive(worth, texts):
    plans = []
    for text, options in texts:
        at, plan = 0, []
        while at < len(text):
            best, chosen = 0.0, (1, 0)
            for length, distance in options[at]:
                end = at + length
                after = options[end][-1][0] if end < len(text) and options[end] else 0
                value = worth(length, distance, after)
                if value > best:
                    best, chosen = value, (length, distance)
            plan.append(chosen)
            at += chosen[0]
        plans.append(plan)
    return plans
"""


def text(seed):
    """Words of a small vocabulary, by Zipf's law, in phrases that come back; with typing errors."""
    draw = scoring.stream(24000 + seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letters[int(26 * draw() ** 2)] for _ in range(2 + int(6 * draw()))) for _ in range(30)]
    phrases = [[words[int(30 * draw() ** 2)] for _ in range(2 + int(4 * draw()))] for _ in range(6)]
    result = ""
    while len(result) < CHARACTERS:
        part = phrases[int(6 * draw())] if draw() < 0.4 else [words[int(30 * draw() ** 2)]]
        for word in part:
            if draw() < 0.15:
                k = int(len(word) * draw())
                word = word[:k] + letters[int(26 * draw())] + word[k + 1 :]
            result += word + " "
    return result[:CHARACTERS]


def copies(text):
    """For each place, the (length, distance) of earlier copies worth a look: of each length of 2 and more the nearest,
    short ones first."""
    found = []
    for at in range(len(text)):
        nearest: dict[int, int] = {}
        for distance in range(1, at + 1):
            length = 0
            while at + length < len(text) and text[at + length] == text[at - distance + length]:
                length += 1
            if length >= 2 and length not in nearest:
                nearest[length] = distance
        options, closest = [], CHARACTERS + 1
        for length in sorted(nearest, reverse=True):  # a longer copy that is as near makes a shorter one useless
            if nearest[length] < closest:
                closest = nearest[length]
                options.append((length, closest))
        found.append(options[::-1])
    return found


def bits(length, distance):
    """What a token costs."""
    return 6 if distance == 0 else 1 + 2 * (length - 1).bit_length() - 1 + 2 * distance.bit_length() - 1


def prepared(seeds):
    return [(t, copies(t)) for t in map(text, seeds)]


SEARCH = prepared(range(TEXTS))
HIDDEN = prepared(range(1000, 1000 + 2 * TEXTS))  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one parse per text is needed")
    total = 0
    for (text, _), plan in zip(data, value, strict=True):
        if not isinstance(plan, list) or len(plan) > CHARACTERS:
            raise scoring.Invalid("a parse must be a list of tokens")
        decoded = ""
        for length, distance in scoring.points(plan, len(plan), 2, "tokens", 0, CHARACTERS):
            length, distance = int(length), int(distance)
            if distance == 0 and length == 1:
                decoded += text[len(decoded) : len(decoded) + 1]
            elif 2 <= length and 1 <= distance <= len(decoded):
                for _ in range(length):
                    decoded += decoded[-distance]
            else:
                raise scoring.Invalid("a token is neither a character nor a copy from before")
            total += bits(length, distance)
            if len(decoded) > CHARACTERS:
                break
        if decoded != text:
            raise scoring.Invalid("the parse does not give the text")
    rate = total / len(data) / CHARACTERS
    return {"combined_score": 1 / (rate - 1), "bits": rate}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="worth", driver=DRIVER, args=(data,), score=partial(score, data))
