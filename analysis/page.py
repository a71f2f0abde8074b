"""The name of a page's template in, the template out: pages that load nothing and in which foreign text stays text."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

__all__ = ["template"]


def template(name: str) -> Template:
    """One of `analysis/templates`; a value that it is not given is an error, not a blank."""
    environment = Environment(
        loader=PackageLoader("analysis", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(name)
