"""Sphinx: `sphinx-build -W docs docs/_build/html`, which needs no network."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "appo-jax"
author = "The appo-jax authors"
copyright = "The appo-jax authors"
version = release = importlib.metadata.version(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "docstrings",
    "mathml",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = project
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["math.css"]
html_theme_options = {"navigation_with_keys": True}
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3  # headings that links can name, down to this level
nitpicky = True
# Names of types in signatures, and in backquotes in docstrings, are links only where they can be.
nitpick_ignore_regex = [("py:(class|obj)", ".*")]

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "exclude-members": "replace"}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
templates_path = ["templates"]
