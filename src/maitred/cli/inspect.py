"""`maitred inspect`: what is known about a model without running any of it."""

from __future__ import annotations

from typing import Annotated

import typer

from maitred.cli.failure import CommandFailed


def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="An artifact's folder or a model file.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json")] = "text",
) -> int:
    """Show a model's signature, digest, libraries and problems; nothing of the model runs.

    Exits with 1 where it would not load as things are, for another reason than that it needs trust.
    """
    import json

    import msgspec

    from maitred.model.inspect import inspect as look
    from maitred.model.source import Source

    if output not in ("text", "json"):
        raise CommandFailed(f"--output: expected text or json, got {output!r}")
    found = look(Source(path))
    if output == "json":
        typer.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        for line in found.to_text().split("\n")[:-1]:
            typer.echo(harmless(line))
    return 0 if found.sound else 1


def harmless(line: str) -> str:
    """The line without anything that moves a terminal's cursor: an artifact's text is somebody else's.

    Backslashes stay as they are, so that printed commands can be pasted.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
