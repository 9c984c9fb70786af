"""`{smdp-command} run`: usage, arguments and options of a command, from the program itself."""

from __future__ import annotations

from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from smdp.cli import app


def commands() -> dict[str, Any]:
    """Give every command that does something, e.g. "trace report", by its name."""
    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        for below, leaf in getattr(command, "commands", {"": command}).items():
            found[f"{name} {below}".strip()] = leaf
    return found


class CommandDirective(SphinxDirective):
    """The options of a command and, of one that has commands, of all of these."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        wanted = self.arguments[0]
        found = {
            name: command
            for name, command in commands().items()
            if name == wanted or name.startswith(f"{wanted} ")
        }
        assert found, f"there is no command smdp {wanted}"
        return self.parse_text_to_nodes("\n\n".join(described(*item) for item in found.items()))


def described(name: str, command: Any) -> str:
    """Describe a command as MyST."""
    parameters = [one for one in command.params if one.name != "help"]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    places = "".join(f" {(one.metavar or one.name).upper()}" for one in arguments)
    rows = [
        f"| {_names(one)} | {_default(one)} | {(one.help or '').replace('|', chr(92) + '|')} |"
        for one in arguments + options
    ]
    head = [f"`smdp {name} [OPTIONS]{places}`", "", command.help.strip(), ""]
    return "\n".join([*head, "| | Default | |", "|---|---|---|", *rows])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "must be given"
    if parameter.default is False:
        return "off"
    return "none" if parameter.default in (None, "") else f"`{parameter.default}`"


def setup(app: Sphinx) -> None:
    app.add_directive("smdp-command", CommandDirective)
