"""Makes ``docs/cli.md`` from the commands themselves.

``python -m magneton.cli.docs`` writes it, with ``--check`` it only says whether it is up to date (exit code 1 when not).
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import typer

from magneton.cli.app import app
from magneton.schemas import docs

_INTRODUCTION = """\
# Command line

`make docs` makes this page from the commands; do not edit it. `magneton --help` and `magneton COMMAND --help` show the same text. The
[glossary](README.md#glossary) explains words such as recording, capture and region.

Data goes to stdout; progress, notes and errors go to stderr. `NO_COLOR` switches colours off. An error is one line with
the file, the reason and the remedy. `MAGNETON_TRACEBACK=1` or `-vv` adds the traceback. Write a name that begins with a dash after
`--`, or as `./-name`. `magneton --install-completion` sets up shell completion.

| exit code | meaning |
|---|---|
| 0 | success |
| 2 | bad input, wrong usage, or recordings that are not comparable |
| 70 | internal error: a bug |
| 130 | interrupted |
| 141 | the reader of the output closed the pipe, e.g. `magneton sql ... \\| head -1` |
"""


def commands() -> dict[str, Any]:
    """Return the commands by name, as the command line has them."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _usage(name: str, command: Any) -> str:
    words = ["magneton", name, "[OPTIONS]"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = parameter.metavar or parameter.name.upper()
            words.append(f"{word}..." if parameter.nargs == -1 else word)
    return " ".join(words)


def _default(parameter: Any) -> str:
    value = parameter.default
    return "" if value in (None, False) or parameter.count or callable(value) else f" (default: {value})"


def _section(name: str, command: Any) -> str:
    parts = [f"## `magneton {name}`\n\n```\n{_usage(name, command)}\n```\n"]
    parts.append(inspect.cleandoc(command.help or "") + "\n")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    if arguments:
        rows = [(f"`{p.metavar or p.name.upper()}`", getattr(p, "help", "") or "") for p in arguments]
        parts.append(docs.markdown_table(("argument", "meaning"), rows))
    rows = []
    for option in options:
        names = ", ".join(sorted((*option.opts, *option.secondary_opts), key=len))
        value = "" if option.is_flag or option.count else f" {option.metavar or option.name.upper()}"
        rows.append((f"`{names}{value}`", f"{option.help or ''}{_default(option)}"))
    parts.append(docs.markdown_table(("option", "meaning"), rows))
    return "\n".join(parts)


def text() -> str:
    """Return ``docs/cli.md``."""
    return "\n".join([_INTRODUCTION, *(_section(n, c) for n, c in commands().items())])


if __name__ == "__main__":
    sys.exit(docs.command(text, "docs/cli.md"))
