"""Who descends from whom: the states of a loop as nodes, their decisions as status, as JSON and as a picture.

lineage.json   {"nodes": [{"id", "name", "parent", "round", "kind": root|branch, "status": committed|rejected|
                undecided, "numbers": {…}}], "root": id, "archive": […]}
lineage.html   the same as a page of its own, no script, nothing loaded
"""

from __future__ import annotations

import html
from typing import Any

from eft.gate.decide import Verdict
from eft.gate.evidence import Pool

STATUS = {Verdict.COMMIT: "committed", Verdict.REJECT: "rejected", Verdict.UNDECIDED: "undecided"}
COLOURS = {"committed": "#1a7f37", "rejected": "#9aa0a6", "undecided": "#b58900"}
STEP, ROW, LEFT, TOP = 190, 38, 90, 46


def nodes(pool: Pool, name: str, first: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """All states of a loop, from the ledger alone. `first`: name and fingerprint of the root that it began with.

    Decisions are called NAME.r<k>.screen and NAME.r<k>.confirm. A branch that screening did not choose is rejected.
    """
    root = {
        "id": first["fingerprint"],
        "name": first["name"],
        "parent": None,
        "round": -1,
        "kind": "root",
        "status": "committed",
        "numbers": {},
    }
    found, current = [root], first["fingerprint"]
    for k in range(rounds):
        screened, confirmed = (pool.decided(f"{name}.r{k}.{part}") for part in ("screen", "confirm"))
        branches = screened["candidates"] if screened else [confirmed["candidate"]] if confirmed else []
        final = confirmed or (screened if screened and screened["verdict"] else None)
        winner = final["candidate"]["fingerprint"] if final else None
        if final and winner not in {b["fingerprint"] for b in branches}:
            branches = [*branches, final["candidate"]]  # recovery made another state of the winner
        for i, b in enumerate(branches):
            numbers: dict[str, Any] = {}
            if screened and i < len(screened["means"]):
                numbers |= {"screened": screened["means"][i], "screening_items": screened["items"]}
            status = "rejected" if final else "undecided"
            if b["fingerprint"] == winner and final:
                status = STATUS[Verdict(final["verdict"])]
                numbers |= {"advantage": final["mean"], "items": final["used"], **final["numbers"]}
            found.append(
                {
                    "id": b["fingerprint"],
                    "name": b["name"],
                    "parent": current,
                    "round": k,
                    "kind": "branch",
                    "status": status,
                    "numbers": numbers,
                }
            )
        if final and final["verdict"] == Verdict.COMMIT:
            current = winner
    return found


def current(found: list[dict[str, Any]]) -> str:
    """The id of the newest committed state."""
    return [n["id"] for n in found if n["status"] == "committed"][-1]


def svg(found: list[dict[str, Any]]) -> str:
    """The picture: rounds from left to right, an edge from every branch to the root that it was compared with."""
    at: dict[str, tuple[int, int]] = {}
    rows: dict[int, int] = {}
    for n in sorted(found, key=lambda n: (n["round"], n["status"] != "committed")):
        row = rows[n["round"]] = rows.get(n["round"], -1) + 1
        at[n["id"]] = (LEFT + STEP * (n["round"] + 1), TOP + ROW * row)
    width = LEFT + STEP * (max(n["round"] for n in found) + 2)
    height = TOP + ROW * (max(rows.values()) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11" role="img" aria-label="lineage">'
    ]
    for r in sorted(rows):
        label = "start" if r < 0 else f"round {r + 1}"
        parts.append(f'<text x="{LEFT + STEP * (r + 1)}" y="16" text-anchor="middle" fill="currentColor" opacity="0.7">{label}</text>')
    for n in found:
        if n["parent"]:
            (x1, y1), (x2, y2) = at[n["parent"]], at[n["id"]]
            dash = "" if n["status"] == "committed" else ' stroke-dasharray="3 3"'
            parts.append(
                f'<path d="M{x1} {y1}C{x1 + 80} {y1} {x2 - 80} {y2} {x2} {y2}" fill="none" '
                f'stroke="{COLOURS[n["status"]]}"{dash}/>'
            )
    for n in found:
        x, y = at[n["id"]]
        told = html.escape(f"{n['name']}: {n['status']} {_numbers(n)}")
        parts.append(
            f'<g><title>{told}</title><circle cx="{x}" cy="{y}" r="7" fill="{COLOURS[n["status"]]}"/>'
            f'<text x="{x}" y="{y - 10}" text-anchor="middle" fill="currentColor">{html.escape(n["name"][:20])}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def well_formed(value: Any) -> bool:
    """Is this a lineage.json that can be drawn?"""
    found = value.get("nodes") if isinstance(value, dict) else None
    if not isinstance(found, list) or not found or not isinstance(value.get("archive", []), list):
        return False
    seen: set[str] = set()
    for n in found:
        if not (
            isinstance(n, dict) and isinstance(n.get("id"), str) and isinstance(n.get("name"), str)
            and isinstance(n.get("round"), int) and -1 <= n["round"] < 10_000 and n.get("status") in COLOURS
            and isinstance(n.get("numbers"), dict) and (n.get("parent") is None or n["parent"] in seen)
        ):  # fmt: skip
            return False
        seen.add(n["id"])
    return True


def _numbers(n: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:+.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in n["numbers"].items())


def page(value: dict[str, Any]) -> str:
    """lineage.json as a page."""
    rows = "".join(
        f"<tr><td>{'' if n['round'] < 0 else n['round'] + 1}</td><td>{html.escape(n['name'])}</td>"
        f"<td>{n['status']}</td>"
        f"<td>{html.escape(_numbers(n))}</td><td><code>{n['id']}</code></td></tr>"
        for n in value["nodes"]
    )
    kept = "".join(
        f"<tr><td>{e['round'] + 1}</td><td>{html.escape(str(e['by']))}</td><td>{e['status']}</td><td>{e['age']}</td>"
        f"<td>{e.get('replies', '')}</td><td><code>{html.escape(str(e['path']))}</code></td></tr>"
        for e in value.get("archive", [])
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Lineage</title><style>body{font:14px sans-serif;'
        "margin:2em}table{border-collapse:collapse}td,th{padding:2px 10px;border-bottom:1px solid #ddd;text-align:left}"
        f"</style><h1>Lineage</h1>{svg(value['nodes'])}<p>Green: inherited. Grey: rejected, or not chosen by "
        "screening. "
        "Yellow: undecided, the root was kept.</p><table><tr>"
        "<th>round<th>state<th>status<th>numbers<th>fingerprint</tr>"
        f"{rows}</table><h2>Archive</h2><table><tr><th>round<th>by<th>status<th>age<th>replies<th>folder</tr>{kept}"
        "</table></html>\n"
    )
