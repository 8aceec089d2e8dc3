"""What a vLLM server tells of itself at /metrics: how much of the prompts it had in its prefix cache."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable

TIMEOUT_S = 3.0
_COUNTER = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def prefix_cache(base_urls: Iterable[str]) -> tuple[float, float] | None:
    """(tokens of prompts looked up, tokens of them found) of all servers since they started; None where none tells."""
    found: list[tuple[float, float]] = []
    for url in base_urls:
        try:
            with _NO_PROXY.open(f"{url.rstrip('/').removesuffix('/v1')}/metrics", timeout=TIMEOUT_S) as answer:
                text = answer.read(1 << 24).decode("utf-8", "replace")
            sums = {"queries": 0.0, "hits": 0.0}
            for name, value in _COUNTER.findall(text):
                sums[name] += float(value)
        except (OSError, ValueError):
            continue
        if sums["queries"]:
            found.append((sums["queries"], sums["hits"]))
    return (sum(q for q, _ in found), sum(h for _, h in found)) if found else None


def shared(before: tuple[float, float] | None, after: tuple[float, float] | None) -> str:
    """In words: what share of the prompts between the two looks was cached; "" where that is not known."""
    if after is None:
        return ""
    queries, hits = (a - b for a, b in zip(after, before or (0.0, 0.0), strict=True))
    if queries <= 0:
        return ""
    return f"{hits / queries:.0%} of {queries:.0f} prompt tokens were in the server's prefix cache"
