"""`maitred predict`: load a model here, answer for the rows of a file, print JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from maitred.cli.failure import CommandFailed

if TYPE_CHECKING:
    from maitred.embed import Handle
    from maitred.messages import Result
    from maitred.model.signature import Signature

Form = Literal["row", "rows", "columns"]


class Table(NamedTuple):
    """Values by input, and the form in which they were given, which the answer takes too."""

    columns: dict[str, Any]
    form: Form


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An artifact's folder, a model file, file.py:Class or module:Class.")
    ],
    place: Annotated[
        str,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE|-",
            help="JSON (an object, a list of them, or columns), CSV or Parquet; - reads JSON from standard input.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="json", help="How the answer is written.")] = "json",
    trust: Annotated[
        str | None, typer.Option(metavar="'WHO: WHY'", help="Allow code and pickles inside the model to run.")
    ] = None,
) -> None:
    """Load a model in this process and print its answer to the rows of a file.

    JSON is taken and written as on the plain route, POST /predict/MODEL.
    """
    if output != "json":
        raise CommandFailed(f"--output: expected json, got {output!r}")
    text = _read(place)
    from maitred import embed
    from maitred.errors import Malformed

    with embed.load(model, trust=trust, isolated=True) as handle:
        signature = handle.signature
        try:
            table = _table(place, signature) if text is None else parsed(text, signature)
            empty = table.form == "rows" and not table.columns
            answer = None if empty else _answer(handle, table)
        except Malformed as error:
            raise CommandFailed(f"--input: {error.message}") from None
    line = b"[]" if answer is None else written(answer, signature, table.form)
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _answer(handle: Handle, table: Table) -> dict[str, Any]:
    """What the model says. Raises MaitredError, or CommandFailed with what the model itself raised, and where."""
    from maitred.errors import ModelFault

    try:
        return handle.predict(table.columns)
    except ModelFault as error:
        if error.__cause__ is None:
            raise
        import traceback

        frame = traceback.extract_tb(error.__cause__.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
        raise CommandFailed(f"the model raised {error.message} ({where})", 1) from error


def _read(place: str) -> bytes | None:
    """The JSON text; None for a table, which its own library reads."""
    if place == "-":
        return sys.stdin.buffer.read()
    path = Path(place)
    if not path.exists() or path.is_dir():
        raise CommandFailed(f"--input: there is no file {place}")
    return None if path.suffix in (".csv", ".parquet") else path.read_bytes()


def parsed(text: bytes, signature: Signature) -> Table:
    """The values in a JSON text. Raises Malformed."""
    from maitred.gateway.rows import Bridge, read_object, read_rows
    from maitred.wire.json import check_count

    bridge = Bridge(signature)
    form: Form
    if text.lstrip()[:1] == b"[":
        rows = read_rows(text)
        keys = sum(map(len, rows))
        form, tensors = "rows", bridge.rows(rows) if rows else {}
    else:
        row = read_object(text)
        keys = len(row)
        if row.keys() == {"columns"}:
            columns = read_object.part(row["columns"], "columns")
            keys += len(columns)
            form, tensors = "columns", bridge.columns(columns)
        else:
            form, tensors = "row", bridge.rows([row]) if signature.row_wise else bridge.columns(row)
    check_count(text, keys)
    return Table(dict(tensors), form)


def written(answer: dict[str, Any], signature: Signature, form: Form) -> bytes:
    """The answer in the form of the question. Raises MaitredError where an output cannot be said in JSON."""
    from maitred.gateway.rows import Bridge, objects

    bridge, result = Bridge(signature), _result(answer, signature)
    names = list(answer)
    if form == "columns" or not signature.row_wise:
        [body] = objects(names, [[bridge.value(name, result)] for name in names])
        return b'{"columns":%b}' % body if form == "columns" else body
    rows = objects(names, [bridge.row_values(name, result) for name in names])
    return rows[0] if form == "row" else b"[%b]" % b",\n".join(rows)


def _result(answer: dict[str, Any], signature: Signature) -> Result:
    from maitred.messages import Outputs, Result
    from maitred.model.forms import tensors_of

    tensors = tensors_of(signature.outputs, answer)
    rows = next(iter(tensors.values())).shape[0] if signature.row_wise else 1
    return Result(Outputs(tensors, rows), 0, rows, True)


# --- tables --------------------------------------------------------------------------------------------------------


def _table(place: str, signature: Signature) -> Table:
    """The inputs' columns of a CSV or Parquet file; the rules of JSON hold for their values.

    Raises Malformed, CommandFailed.
    """
    if place.endswith(".csv"):
        return Table(_read_csv(place, signature), "rows")
    from maitred.wire.headings import check_spelling

    table = read_table(place, "--input")
    missing = [name for name, spec in signature.inputs.items() if not spec.optional and name not in table.column_names]
    if missing:
        raise CommandFailed(f"--input: {place} has no column {missing[0]!r}; it has {', '.join(table.column_names)}")
    check_spelling(table.column_names, signature.inputs)
    chosen = {name: table.column(name) for name in signature.inputs if name in table.column_names}
    return Table({name: _values(name, column) for name, column in chosen.items()} if table.num_rows else {}, "rows")


def _read_csv(place: str, signature: Signature) -> dict[str, Any]:
    from maitred.errors import Malformed
    from maitred.wire import csv

    try:
        return dict(csv.tensors(Path(place).read_bytes(), signature.inputs, signature.shared) or {})
    except Malformed as error:
        raise CommandFailed(f"--input: {place}: {error.message}") from None


def _values(name: str, column: Any) -> Any:
    """Numbers and texts of a file in Python's own types, for which the signature's dtypes need not be the file's."""
    from maitred.wire import arrow

    try:
        arrow.check_type(column.type)
    except arrow.NoColumn as error:
        raise CommandFailed(f"--input: column {name!r}: {error}") from None
    return column if str(column.type).startswith(("timestamp", "date")) else column.to_pylist()


def read_table(place: str, option: str) -> Any:
    """A CSV or Parquet file as an Arrow table. Raises CommandFailed."""
    if not Path(place).is_file():
        raise CommandFailed(f"{option}: there is no file {place}")
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise CommandFailed(f"{option}: tables need pyarrow: pip install 'maitred[arrow]'") from None
    try:
        if place.endswith(".parquet"):
            return pyarrow.parquet.read_table(place)
        return pyarrow.csv.read_csv(place)
    except pyarrow.ArrowException as error:
        raise CommandFailed(f"{option}: {place}: {error}") from None
