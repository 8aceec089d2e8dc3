"""What a program says, apart from how it is laid out: does an edit change it at all?"""

from __future__ import annotations

import ast
import warnings
from typing import Any

TRIES = 20  # a tree that another thread got in the way of is made again


def changes_syntax(parent: str, child: str, language: str = "python") -> bool:
    """Does the child say something else than the parent? Python and YAML: it parses, and to something else (comments and
    layout do not count); other languages: the text differs beyond white space."""
    if language == "yaml":
        said = yaml_events(child)
        return said is not None and said != yaml_events(parent)
    if language != "python":
        return [line.split() for line in parent.splitlines() if line.strip()] != [
            line.split() for line in child.splitlines() if line.strip()
        ]
    tree = parse_python(child)
    if tree is None:
        return False
    before = parse_python(parent)
    try:
        return before is None or ast.dump(before) != ast.dump(tree)
    except RecursionError:  # an expression nested thousands deep: fall back to the text
        return parent != child


def parse_python(code: str | bytes) -> ast.Module | None:
    """The syntax tree of `code`, None where it has none. Never raises, never warns."""
    for _ in range(TRIES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None
        except SystemError:  # "AST constructor recursion depth mismatch": CPython 3.11 counts all threads' depth together
            continue
    return None


def yaml_events(code: str) -> list[tuple[Any, ...]] | None:
    """What a YAML text says, None where it is none. Never raises. Aliases are not followed and tags not obeyed, so the
    time is linear whatever the text would grow to."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one written in C, where PyYAML was built with it
    try:
        return [(type(e).__name__, *(str(getattr(e, k, "")) for k in ("anchor", "tag", "implicit", "value")))
                for e in yaml.parse(code, Loader=loader)]  # fmt: skip
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):
        return None
