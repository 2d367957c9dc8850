"""`maitred pack`: a model's file becomes an artifact, tried on its example and sealed with digests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.failure import CommandFailed
from maitred.cli.inspect import harmless

if TYPE_CHECKING:
    from maitred.model.signature import Signature


def pack(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A model file: model.onnx, model.skops, file.py, file.py:Class, ...")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write; it may hold an older artifact.")],
    name: Annotated[str, typer.Option(help="The model's name; made from the file's where left out.")] = "",
    signature: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|JSON",
            help="Where the model does not tell: TOML or JSON with inputs and outputs, such as "
            '{"inputs": {"x": "float32[n, 4]"}, "outputs": {"y": "float32[n]"}}.',
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Real inputs: JSON (an object, a list of them, or columns), CSV or Parquet."),
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", metavar="PATH", help="Copied beside the model; may be repeated.")
    ] = None,
    repeatable: Annotated[
        bool, typer.Option(help="Whether the same inputs always give the same answers, so that they are kept.")
    ] = True,
    library: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A distribution that the model's code uses: its version is recorded too."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A setting of the model's flavor, its value JSON or text; may be repeated."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="What the model was exported from: both must agree on the example."),
    ] = None,
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Pack it even where it does not agree with its reference.")
    ] = False,
    trust: Annotated[
        str | None, typer.Option(metavar="'WHO: WHY'", help="Allow code and pickles inside the model, here and later.")
    ] = None,
) -> None:
    """Write a model as an artifact (a folder with a manifest, digests and an example), and show its signature."""
    from maitred.model.inspect import inspect
    from maitred.model.pack import pack as write
    from maitred.model.source import Source

    description = write(
        source,
        out,
        name=name,
        signature=None if signature is None else read_signature(signature),
        example=None if example is None else read_example(example),
        repeatable=repeatable,
        options=read_options(option or ()),
        files=files or (),
        libraries=library or (),
        reference=reference,
        accept_differences=accept_differences,
        trust=trust,
    )
    typer.echo(f"{out}: {description.name} {description.digest}")
    for line in inspect(Source(str(out))).summary():
        typer.echo(harmless(line))
    for warning in description.warnings:
        typer.echo(f"warning: {warning}", err=True)


def read_options(given: Iterable[str]) -> dict[str, Any]:
    """Settings of a flavor from `key=value`, where a value that is no JSON is text. Raises CommandFailed."""
    import msgspec

    options: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise CommandFailed(f"--option: expected KEY=VALUE, got {text!r}")
        try:
            options[key] = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            options[key] = value
    return options


def read_signature(given: str) -> Signature:
    """A signature from a TOML or JSON file, or from JSON itself. Raises CommandFailed, BadSignature."""
    import tomllib

    import msgspec

    from maitred.model.signature import Signature

    text = given if given.lstrip().startswith("{") else _text(given, "--signature")
    try:
        record = tomllib.loads(text) if given.endswith(".toml") else msgspec.json.decode(text)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise CommandFailed(f"--signature: {error}") from None
    if not isinstance(record, dict):
        raise CommandFailed("--signature: expected an object with `inputs` and `outputs`")
    return Signature.from_dict(record.get("signature", record))


def read_example(place: str) -> dict[str, Any]:
    """The columns of an example by name. Raises CommandFailed."""
    if place.endswith((".csv", ".parquet")):
        return _table_columns(place)
    import msgspec

    try:
        value = msgspec.json.decode(_text(place, "--example"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise CommandFailed(f"--example: {place} is not valid JSON: {error}") from None
    if isinstance(value, dict) and value.keys() == {"columns"} and isinstance(value["columns"], dict):
        return value["columns"]
    rows = [value] if isinstance(value, dict) else value
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise CommandFailed('--example: expected an object, a list of objects, or {"columns": {...}}')
    for index, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            other = min(row.keys() ^ rows[0].keys())
            raise CommandFailed(f"--example: row {index}: {other!r} is in some rows and not in others")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _table_columns(place: str) -> dict[str, Any]:
    from maitred.cli.predict import read_table

    table = read_table(place, "--example")
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _text(place: str, option: str) -> str:
    path = Path(place)
    if not path.exists() or path.is_dir():
        raise CommandFailed(f"{option}: there is no file {place}")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise CommandFailed(f"{option}: {place} is not UTF-8 text") from None
