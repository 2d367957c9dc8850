"""The entry point: finds the subcommand, and turns what it raises into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from maitred.cli.bench import bench
from maitred.cli.inspect import inspect
from maitred.cli.new import new
from maitred.cli.pack import pack
from maitred.cli.predict import predict
from maitred.cli.serve import serve

# Plain help text: the coloured one costs 0.3 s of imports.
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(new)
app.command()(serve)
app.command()(predict)
app.command()(pack)
app.command()(inspect)
app.command()(bench)


@app.command()
def version() -> None:
    """Print the version of maitred."""
    from maitred import __version__

    typer.echo(f"maitred {__version__}")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Serve a model, call it, pack it, look at it and load its server."""
    if show_version:
        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; raises only for a defect."""
    from maitred.cli.failure import stop_printing, told

    try:
        code = app(args=arguments, prog_name="maitred", standalone_mode=False)
    except typer.TyperException as error:  # what typer says about the arguments
        path = getattr(getattr(error, "ctx", None), "command_path", "maitred")
        _say(f"maitred: {' '.join(error.format_message().split())} (see {path} --help)")
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        stop_printing()
        return 1
    except Exception as error:
        known = told(error)
        if known is None:
            raise
        _say(known.line)
        return known.exit_code
    return code if isinstance(code, int) else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """What the `maitred` script calls."""
    sys.exit(run())


if __name__ == "__main__":
    main()
