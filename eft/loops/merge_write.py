"""Write the model that a recipe makes, to be served, gated or searched with like any other.

    python -m eft.loops.merge_write TASK_FOLDER RECIPE.yaml OUT

TASK_FOLDER: the task of the merge, below OUT/loops/merge of an evaluation. A linear recipe over adapters becomes an
adapter on the same base, every other one a whole model in float32.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from eft.errors import EftError, UsageError
from eft.loops import merge_client, merge_experts
from eft.loops.merge_recipe import RecipeError, parse


def write(task_folder: Path, genome: str, out: Path) -> str:
    """Write the merged model to `out`. Returns "adapter" or "model". Raises EftError where the models have changed, and
    UsageError for a recipe that makes no model, or where `out` holds something."""
    from eft import tokenizers
    from eft.loops.merge_weights import Held
    from eft.models.identity import tokenizer_place

    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError("the merged model would replace what is there", where=out, way_out="remove it, or name another folder")
    work, plan = merge_client.plan_of(task_folder)
    experts = plan["experts"]
    try:
        recipe = parse(genome, list(experts["places"]), layers=experts["layers"], full=experts["full"])
        merge_experts.unchanged(experts)
        held = Held(experts, seed=plan["options"]["seed"], scratch=Path(plan["scratch"]).with_name("scratch-write"))
        return held.write(recipe, tokenizers.load(tokenizer_place(experts["base"])), out)
    except RecipeError as e:
        raise UsageError("this recipe makes no model", why=str(e)) from None
    finally:
        shutil.rmtree(Path(plan["scratch"]).with_name("scratch-write"), ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python -m eft.loops.merge_write TASK_FOLDER RECIPE.yaml OUT")
    try:
        made = write(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).read_text(encoding="utf-8"), Path(sys.argv[3]).resolve())
        print(f"{sys.argv[3]}: {'an adapter' if made == 'adapter' else 'a whole model'}")
    except EftError as e:
        sys.exit(f"error: {e}")
    except (OSError, UnicodeDecodeError) as e:
        sys.exit(f"error: the recipe cannot be read: {e}")
