"""`maitred serve`: models by path or from a settings file, served until a signal comes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.failure import CommandFailed, stop_printing

if TYPE_CHECKING:
    from maitred.settings import Given, KeyPath, ServerSettings

DEFAULT_FILE = "maitred.yaml"

_MODULE = re.compile(r"\w+(\.\w+)*:\w+")


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]PATH...", help="An artifact's folder, a model file, file.py:Class or module:Class."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help=f"Settings; without it and without a PATH, ./{DEFAULT_FILE} is read.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="[default: 127.0.0.1:8080]")] = None,
    admin_listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="[default: 127.0.0.1:8081]")] = None,
    fronts: Annotated[
        int | None, typer.Option(help="Processes that own the connections; see docs/fronts.md. [default: 1]")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of each model. [default: 1]")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Where models run: auto, process, thread or inline. [default: auto]")
    ] = None,
    max_batch_rows: Annotated[int | None, typer.Option(help="Rows in a batch at most. [default: 64]")] = None,
    deadline_seconds: Annotated[
        float | None, typer.Option(help="For requests that state no deadline. [default: 30]")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(metavar="'WHO: WHY'", help="Allow code and pickles inside the models to run.")
    ] = None,
    allow_repository_control: Annotated[
        bool,
        typer.Option(
            "--allow-repository-control", help="Reserved for loading and unloading over the data port; refused for now."
        ),
    ] = False,
    home: Annotated[str | None, typer.Option(metavar="DIR", help="[default: ~/.maitred]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. [default: text]")] = None,
) -> int:
    """Serve models over HTTP. The first line printed is the base URL."""
    from maitred.settings import load_settings

    flags: dict[tuple[str, ...], tuple[str, object]] = {
        ("listen",): ("--listen", listen),
        ("admin_listen",): ("--admin-listen", admin_listen),
        ("fronts",): ("--fronts", fronts),
        ("models", "*", "replicas", "min"): ("--replicas", replicas),
        ("models", "*", "replicas", "max"): ("--replicas", replicas),
        ("models", "*", "replicas", "kind"): ("--kind", kind),
        ("models", "*", "batching", "max_batch_rows"): ("--max-batch-rows", max_batch_rows),
        ("models", "*", "deadline_seconds"): ("--deadline-seconds", deadline_seconds),
        ("models", "*", "trust"): ("--trust", trust),
        ("allow_repository_control",): ("--allow-repository-control", allow_repository_control or None),
        ("home",): ("--home", home),
        ("log_level",): ("--log-level", log_level),
        ("log_format",): ("--log-format", log_format),
    }
    if config is None and not models and Path(DEFAULT_FILE).exists():
        config = Path(DEFAULT_FILE)
    settings = load_settings(config, overrides(models or [], flags), os.environ)
    if not settings.models:
        raise CommandFailed(
            f"there is nothing to serve: give a PATH, or a --config file with `models` (./{DEFAULT_FILE})"
        )
    return _served(settings)


def _served(settings: ServerSettings) -> int:
    import logging

    from maitred import assemble
    from maitred.observe.logs import set_up
    from maitred.settings import unknown_variables

    undo = set_up(settings.log_level, settings.log_format)
    try:
        unknown = unknown_variables(os.environ)
        if unknown:
            logging.getLogger("maitred").warning("unknown environment variables are ignored: %s", ", ".join(unknown))
        return assemble.serve(settings, announce)
    finally:
        undo()


def announce(line: str) -> None:
    """Print a line for whoever started the server."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        stop_printing()  # they have read what they wanted; the callers still want their answers


def overrides(models: list[str], flags: dict[tuple[str, ...], tuple[str, object]]) -> dict[KeyPath, Given]:
    """What the command line sets. Raises CommandFailed for a model that cannot be named, or two of one name."""
    from maitred.settings import Given

    given: dict[KeyPath, Given] = {}
    for argument in models:
        name, path = named(argument)
        if ("models", name, "source") in given:
            raise CommandFailed(f"{argument}: there are two models of the name '{name}'; write NAME={path}")
        given["models", name, "source"] = Given(path, "the command line")
    for key, (flag, value) in flags.items():
        if value is not None:
            given[key] = Given(value, flag)
    return given


def named(argument: str) -> tuple[str, str]:
    """`NAME=PATH` as both; for a bare path the name is the artifact's, the folder's, or the file's without its ending.

    Raises CommandFailed where nothing is there, or NAME or what would be made of the path cannot be a name.
    """
    from maitred.model.names import RULE
    from maitred.settings import NAME

    before, equals, after = argument.partition("=")
    given = equals and not _is_there(argument) and (NAME.fullmatch(before) or _is_there(after))
    if given and NAME.fullmatch(before) is None:
        raise CommandFailed(f"{argument}: '{before}' cannot be a model's name: {RULE}")
    name, path = (before, after) if given else ("", argument)
    file, _, entry = path.rpartition(":")
    if not os.path.exists(path) and not (file and os.path.exists(file)):
        if not _MODULE.fullmatch(path) or file.endswith(".py"):
            raise CommandFailed(f"{path}: there is no such file or folder")
        return name or entry.lower(), path
    place = Path(path if os.path.exists(path) else file).resolve()
    name = name or (_name_in(place) if place.is_dir() else place.stem)
    if NAME.fullmatch(name) is None:
        raise CommandFailed(f"{path}: '{name}' cannot be a model's name; write NAME={path}")
    return name, path


def _name_in(folder: Path) -> str:
    """The name in the folder's manifest; the folder's own where it has none that can be read."""
    from maitred.model.artifact import open_artifact
    from maitred.model.refusals import LoadRefused

    try:
        return open_artifact(folder).manifest.name
    except LoadRefused:
        return folder.name


def _is_there(path: str) -> bool:
    """Whether a model may be meant: a file or folder that exists, with or without an entry behind it, or a module's."""
    file, _, _ = path.rpartition(":")
    return os.path.exists(path) or (file != "" and os.path.exists(file)) or _MODULE.fullmatch(path) is not None
