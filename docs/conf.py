"""How the documentation is built: ``make docs``. All that is made by the build lies in docs/made and build/docs."""

import os
import sys
from pathlib import Path

os.environ["NUMBADNN_VERBOSE"] = "quiet"  # pages do not depend on the options of whoever builds them
os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # examples are small: threads would wait for each other

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import numbadnn  # noqa: E402

project = "numbadnn"
author = copyright = "numbadnn developers"
version = release = numbadnn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "made_pages",
    "every_name",
    "source_links",
]
# examples and their own indexes are read from docs/made; files of made/include are parts of other pages
exclude_patterns = ["tutorial/*.rst", "gallery/*.rst", "made/include/**", "README.md"]
templates_path = ["_templates"]
root_doc = "index"
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # arrays are Any: the docstrings say of which shape and dtype
autodoc_inherit_docstrings = False  # those of PyTorch's modules lead to pages that are not here
autodoc_preserve_defaults = True

copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": ["tutorial", "gallery"],
    "gallery_dirs": ["made/tutorial", "made/gallery"],
    "filename_pattern": r"\.py$",  # all of them run
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "page_style.reset"),
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "abort_on_example_error": False,
    "show_memory": False,
    "min_reported_time": 10_000,
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
}

# links to other hosts: what a host cannot say now is no fault of a page (_ext/gone.py)
linkcheck_timeout = 5
linkcheck_retries = 1
linkcheck_rate_limit_timeout = 5
linkcheck_allowed_redirects = {r"https?://.*": r"https?://.*"}
linkcheck_anchors = False
linkcheck_ignore = [r"(\.\./)+"]  # within the site: source_links checks them

html_theme = "pydata_sphinx_theme"
html_title = f"numbadnn {version}"
html_static_path = ["_static"]
html_css_files = ["numbadnn.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
