"""The block `command run`: the usage, arguments and options of a command, from the program itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from smdp.cli import app


def all_commands() -> dict[str, Any]:
    """Returns every command that does something, by its name, such as "trace report"."""
    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        for below, leaf in getattr(command, "commands", {"": command}).items():
            found[f"{name} {below}".strip()] = leaf
    return found


def options(page: Path, wanted: str) -> str:
    """Returns the options of a command, or of all commands of a group."""
    found = {
        name: command
        for name, command in all_commands().items()
        if name == wanted or name.startswith(f"{wanted} ")
    }
    if not found:
        raise ValueError(f"{page.name} shows smdp {wanted}, which is not a command")
    return "\n\n".join(_described(*item) for item in found.items())


def _described(name: str, command: Any) -> str:
    parameters = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    switches = [one for one in parameters if one.param_type_name == "option"]
    places = "".join(f" {(one.metavar or one.name).upper()}" for one in arguments)
    rows = [
        f"| {_names(one)}{_default(one)} | {(one.help or '').replace('|', chr(92) + '|')} |"
        for one in arguments + switches
    ]
    table = ["", "| Option | Meaning |", "|---|---|", *rows] if rows else []
    return "\n".join([f"`smdp {name} [OPTIONS]{places}`", "", command.help.strip(), *table])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)


def _default(parameter: Any) -> str:
    """Returns the default in parentheses; nothing for a switch that is off, or an option without a value."""
    if parameter.param_type_name == "option" and parameter.required:
        return " (required)"
    default = getattr(parameter.default, "value", parameter.default)  # of a choice, its word
    return "" if parameter.required or default in (None, "", False) else f" (`{default}`)"
