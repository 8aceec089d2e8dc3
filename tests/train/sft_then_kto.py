"""Several trainings in one launch: python -m sft_then_kto RECIPE.yaml … (see conftest.launched). What a recipe's data are
for, SFT or KTO, their folder's name tells."""

import sys
from pathlib import Path

import yaml

from eft.train import kto, sft

if __name__ == "__main__":
    for recipe in sys.argv[1:]:
        data = Path(yaml.safe_load(Path(recipe).read_text())["dataset"]).name
        (kto if data.startswith("kto") else sft).main([recipe])
