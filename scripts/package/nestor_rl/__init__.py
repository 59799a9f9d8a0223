"""The program `nestor` as a Python package: programs and bundled plugins, the plugin header, recipes to start from, and pages."""
import os

FOLDER = os.path.dirname(__file__)
# The folder of nestor_plugin.h, for `cc -I`.
INCLUDE = os.path.join(FOLDER, "include")
# Recipes to run or to extend, such as quickstart.yaml.
RECIPES = os.path.join(FOLDER, "recipes")
# Pages about recipes, plugins and commands, such as recipe.md.
DOCS = os.path.join(FOLDER, "docs")
