"""`{smdp-module} smdp.torch`: the public names of a module, from its docstrings.

The sources are read, not run, so that no framework has to be there. A name is public if it is in `__all__`.
Docstrings are Google's with Markdown in them.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from pathlib import Path

import griffe
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from directives.docstrings import markdown
from directives.signatures import Names, annotation, signature

# Modules that have a page, in the order in which a name that several have is looked for.
DOCUMENTED = [
    "smdp",
    "smdp.memory",
    "smdp.partition",
    "smdp.pipeline",
    "smdp.plan",
    "smdp.placement",
    "smdp.sharding",
    "smdp.environments",
    "smdp.torch",
    "smdp.torch.model_parallel",
    "smdp.torch.model_parallel.amp",
    "smdp.torch.model_parallel.checkpoint",
    "smdp.tensorflow",
    "smdp.tensorflow.keras",
    "smdp.tensorflow.keras.callbacks",
    "smdp.transformers",
    "smdp.accelerate",
    "smdp.lightning",
    "smdp.sagemaker",
    "smdp.compat",
]


@cache
def package() -> griffe.Module:
    """Read the sources of the installed smdp."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    spec = importlib.util.find_spec("smdp")
    assert spec is not None and spec.origin is not None
    loader = griffe.GriffeLoader(search_paths=[Path(spec.origin).parents[1]], allow_inspection=False)
    loaded = loader.load("smdp")
    loader.load("smdp_compat")  # what smdp.compat hands on
    loader.resolve_aliases(implicit=False, external=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def find(path: str) -> griffe.Object:
    """Give a module, class or function by the name under which users know it."""
    found: griffe.Object | griffe.Alias = package()
    for name in path.split(".")[1:]:
        owner, found = found, found.members[name]
        if found.is_alias:
            found = found.final_target
        # As in `from package.name import name`: the function hides the module.
        elif found.is_module and name in _exports(owner) and name in found.members:
            found = found.members[name]
    assert isinstance(found, griffe.Object)
    return found


def public_names(path: str) -> list[str]:
    """Give what `__all__` lists, without reading a framework's code."""
    if path == "smdp":  # computed, and importable without a framework
        import smdp

        return [name for name in smdp.__all__ if name != "__version__"]
    found = _exports(find(path))
    if not found:
        raise LookupError(f"{path} has no __all__, so nobody knows which of its names are public")
    return found


def _exports(module: griffe.Object | griffe.Alias) -> list[str]:
    return [str(getattr(name, "name", name)) for name in module.exports or ()]


@cache
def names() -> Names:
    """Say under which public name an object is documented, by where it is defined."""
    found: dict[str, str] = {}
    for module in DOCUMENTED:
        for name in public_names(module):
            found.setdefault(find(f"{module}.{name}").path, f"{module}.{name}")
    return Names(found)


class ModuleDirective(SphinxDirective):
    """`{smdp-module} NAME`: every public name of a module, those of classes included."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = self.arguments[0]
        assert path in DOCUMENTED, f"{path} is missing in DOCUMENTED"
        module = find(path)
        for source in {module, *(find(f"{path}.{name}") for name in public_names(path))}:
            self.env.note_dependency(str(source.filepath))
        lines = [f"```{{py:module}} {path}\n```", markdown(module, names())]
        for name in public_names(path):
            lines += describe(f"{path}.{name}", find(f"{path}.{name}"))
        return self.parse_text_to_nodes("\n\n".join(lines))


def describe(path: str, found: griffe.Object, depth: int = 0) -> list[str]:
    """Describe an object in MyST, its members with it."""
    owner = names().get(found.path)
    if depth == 0 and owner not in (None, path):
        return directive("py:data", path, {"no-index-entry": ""}, f"The same as `{owner}`.", depth)
    text = markdown(found, names())
    if found.is_function:
        kind = "py:method" if depth else "py:function"
        flags = {label: "" for label in ("classmethod", "staticmethod") if label in found.labels}
        return directive(kind, path + signature(found, names()), flags, text, depth)
    if found.is_class:
        return describe_class(path, found, text)
    if found.is_module:
        options = {"no-index": ""} if path in DOCUMENTED else {}
        return directive("py:data", path, options, text or f"The module `{found.path}`.", depth)
    kind = "py:property" if "property" in found.labels else "py:attribute" if depth else "py:data"
    options = {}
    if found.annotation is not None:
        options["type"] = annotation(found.annotation, names())
    if found.value is not None and "property" not in found.labels and len(str(found.value)) < 100:
        options["value"] = str(found.value)
    return directive(kind, path, options, text, depth)


def describe_class(path: str, found: griffe.Object, text: str) -> list[str]:
    """Describe a class and what can be used of it."""
    is_enum = any("Enum" in str(base) for base in found.bases)
    is_error = path.endswith("Error")
    body = [text]
    inherited = {name: member.final_target for name, member in found.inherited_members.items()}
    for name, member in {**found.members, **inherited}.items():
        if name.startswith("_") or member.is_alias or member.is_module:
            continue
        is_plain = member.is_attribute and "property" not in member.labels and not member.has_docstring
        if is_plain and not (is_enum or {"dataclass"} & found.labels or "NamedTuple" in str(found.bases)):
            continue
        body += describe(f"{path}.{name}", member, depth=1)
    call = "" if is_enum or is_error else signature(found, names())
    kind = "py:exception" if is_error else "py:class"
    return directive(kind, path + call, {}, "\n\n".join(body), depth=0)


def directive(kind: str, head: str, options: dict[str, str], body: str, depth: int) -> list[str]:
    """Write a directive in a fence that is longer than those inside of it."""
    fence = ":" * (8 - depth)
    module = max((one for one in DOCUMENTED if head.startswith(f"{one}.")), key=len)
    head = head.removeprefix(f"{module}.")  # Sphinx puts it before every name below py:module
    lines = [f":{key}: {value}".rstrip() for key, value in options.items()]
    return ["\n".join([f"{fence}{{{kind}}} {head}", *lines, "", body, fence])]


def setup(app: Sphinx) -> None:
    app.add_directive("smdp-module", ModuleDirective)
