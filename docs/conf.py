"""The documentation site: `make docs` builds it in docs/_build/html, with every warning an error."""

import inspect
import os
import re
from importlib.metadata import version as version_of
from pathlib import Path

import click
from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.ext.autosummary import ImportExceptionGroup, get_import_prefixes_from_env, import_by_name
from sphinx.util.docutils import SphinxRole
from sphinx_gallery.sorting import ExplicitOrder

import dkrr
from dkrr.cli.main import dkrr as dkrr_command

project = "dkrr"
author = "The dkrr developers"
version = release = version_of("dkrr")
project_copyright = author

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore = [("py:class", "numpy.linalg.LinAlgError")]
# Parts of the types of arguments, which have no pages: the text beside them says what each is. Nor has scikit-learn.
nitpick_ignore_regex = [
    ("py:class", r"(collections\.abc|numpy|dkrr\.typing)\.\w+|Kernel|FeatureMap|Array"),
    ("py:(class|obj)", r"sklearn\..*"),
]
default_role = "name"

# Pages
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# API reference
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
templates_path = ["api/templates"]

# Examples, which are run for the site, in groups.
GALLERY = {
    "basics": ["waves", "rings", "error_bars", "digits"],
    "real-data": ["delays", "molecules", "messages"],
    "large": ["costs", "many_models", "columns"],
}
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "subsection_order": ExplicitOrder([f"../examples/{group}" for group in GALLERY]),
    "within_subsection_order": ExplicitOrder([f"{name}.py" for names in GALLERY.values() for name in names]),
    "backreferences_dir": "api/examples",
    "doc_module": ("dkrr",),
    "reference_url": {"dkrr": None},
    "download_all_examples": False,
    "min_reported_time": 3600,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "capture_repr": (),
}

# Fonts of the reader's system, and nothing from other hosts.
html_theme = "furo"
html_title = "dkrr"
html_static_path = ["site"]
html_css_files = ["dkrr.css"]
html_copy_source = False

ROOT = Path(__file__).parents[1]
PAGES = {
    "index": "README.md",
    "reference/changelog": "CHANGELOG.md",
    "developers/contributing": "CONTRIBUTING.md",
    "developers/releasing": "RELEASING.md",
    "developers/security": "SECURITY.md",
    "how-to/recipes/index": "cluster/README.md",
    "how-to/recipes/dask-cli": "cluster/dask-cli/README.md",
    "how-to/recipes/slurm": "cluster/slurm/README.md",
    "how-to/recipes/compose": "cluster/compose/README.md",
    "how-to/recipes/kubernetes": "cluster/kubernetes/README.md",
}
"""Pages of the site whose text is elsewhere in the repository, where its readers look for it."""
PAGE_OF = {(ROOT / file).resolve(): f"{page}.md" for page, file in PAGES.items()}
PAGE_OF[ROOT / "examples" / "README.rst"] = "gallery/index.rst"
PAGE_OF |= {path: f"gallery/{path.parent.name}/{path.stem}.rst" for path in (ROOT / "examples").glob("*/*.py")}
LINK = re.compile(r"\]\(([^()#\s]+)")
SIGN = re.compile(r"(`[^`]*`)|(\||(?<=\w)_(?!\w))")
MODULES = [dkrr, *(one for one in (getattr(dkrr, name) for name in dkrr.__all__) if inspect.ismodule(one))]
PUBLIC = {
    id(getattr(module, public)): f"{module.__name__}.{public}"
    for module in MODULES
    for public in module.__all__
    if callable(getattr(module, public))
}
"""Full public name of a class or function; the last of several modules that have it."""


def commands():
    """Return the help of every command as Markdown."""
    settings = {"info_name": "dkrr", "terminal_width": 94, "max_content_width": 94}
    group = click.Context(dkrr_command, **settings)
    yield f"```text\n{dkrr_command.get_help(group)}\n```\n"
    for name, command in dkrr_command.commands.items():
        context = click.Context(command, parent=group, **settings | {"info_name": name})
        yield f"## dkrr {name}\n\n```text\n{command.get_help(context)}\n```\n"


def read_page(app, docname, source):
    """Take the text of a page from where it is, and let links to files of the repository lead to their pages."""
    original = path = app.env.doc2path(docname)
    if docname in PAGES and docname != "index":
        original = ROOT / PAGES[docname]
        app.env.note_dependency(str(original))
        source[0] = original.read_text() + "".join(source[0].partition("\n```{toctree}")[1:])

    if docname.startswith("results/"):
        source[0] = "---\norphan: true\n---\n\n" + source[0]  # linked from the developers' page, not in the navigation

    if docname == "reference/command-line":
        source[0] += "\n".join(commands())

    def lead(match):
        target = (original.parent / match[1]).resolve()
        page = PAGE_OF.get(target) or PAGE_OF.get(target / "README.md")
        if "://" in match[1] or not target.exists():
            return match[0]
        return f"](/{page}" if page else f"]({os.path.relpath(target, path.parent)}"

    if path.suffix == ".md":
        source[0] = LINK.sub(lead, source[0])


class Name(SphinxRole):
    """A name in single backticks of a docstring: a link if it is a public name of dkrr, else code."""

    def run(self):
        """Make the link or the code."""
        modules = [m for m in get_import_prefixes_from_env(self.env) if m is None or not self.text.startswith(m)]
        try:
            _, value, _, _ = import_by_name(self.text, modules)
        except ImportExceptionGroup:
            value = None
        if self.text.rpartition(".")[2].startswith("_") or not is_ours(value):
            return [nodes.literal(self.rawtext, self.text)], []
        text = f"{self.text} <{PUBLIC[id(value)]}>" if id(value) in PUBLIC else self.text
        role = self.env.domains["py"].role("obj")
        return role("obj", self.rawtext, text, self.lineno, self.inliner, self.options, self.content)


def is_ours(value):
    """Whether dkrr defines a class, function, method or property."""
    value = inspect.unwrap(value.fget if isinstance(value, property) else value)
    return str(getattr(value, "__module__", "")).split(".")[0] == "dkrr"


def skip_foreign(app, what, name, obj, skip, options):
    """Leave members that scikit-learn and Python define to their documentation."""
    return True if callable(obj) and not is_ours(obj) else None


def keep_signs(app, what, name, obj, options, lines):
    """Keep bars (absolute values) and underscores at the end of names from being markup, but for code and examples."""
    is_example = False
    for number, line in enumerate(lines):
        is_example = line.lstrip().startswith(">>>") or (is_example and bool(line.strip()))
        if not is_example:
            lines[number] = SIGN.sub(lambda match: match[1] or f"\\{match[2]}", line)


def refuse_other_hosts(app, exception):
    """Refuse pages that load a script, a font or a picture from elsewhere: the site works without a network."""
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]+)\"")
    for page in sorted(Path(app.outdir).rglob("*.html")) if exception is None else ():
        if found := loads.search(page.read_text()):
            raise ExtensionError(f"{page} loads {found[1]}; expected files of the site: give a local one")


def setup(app):
    """Register what is above."""
    app.add_role("name", Name())
    app.connect("source-read", read_page)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", keep_signs, priority=900)
    app.connect("build-finished", refuse_other_hosts)
    return {"parallel_read_safe": True}
