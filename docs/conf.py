"""Sphinx's settings; `make docs` builds the site into build/site.

Pages of commands, documents and metrics are written from the program itself before Sphinx reads its sources (site/pages.py),
and figures are put into their pages as they are, so that they follow light and dark (site/inline.py). Nothing is loaded from
elsewhere when a page is looked at.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "site"))
sys.path.insert(0, str(HERE.parent / "src"))

from isthmus import __version__  # noqa: E402

project = "isthmus"
author = "the isthmus authors"
copyright = "the isthmus authors, Apache License 2.0"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "pages", "inline"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site", "_static"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"isthmus {release}"
html_static_path = ["_static"]
html_css_files = ["isthmus.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7cb4f2", "color-brand-content": "#7cb4f2"},
    "navigation_with_keys": True,
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
