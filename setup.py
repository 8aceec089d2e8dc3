"""Recipes and accelerate configs stand at the top of the repository and travel in the wheel as eft/_shipped/."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithRecipes(build_py):
    """The ordinary build, plus a copy of the two top-level folders that `eft.resources` looks for in an installed wheel."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # an editable install reads them from the checkout
        for name in ("recipes", "accelerate_configs"):
            target = Path(self.build_lib) / "eft" / "_shipped" / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / name, target)


setup(cmdclass={"build_py": BuildWithRecipes})
