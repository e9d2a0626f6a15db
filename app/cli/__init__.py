"""Command line: ``wattcast predict | explain | advise | gpus | doctor | ...``.

Each command lies in a file of its own; ``group.py`` lists them, ``examples.toml`` holds the
examples of their help. Errors are one line on stderr, with the exit statuses of ``exits.py``.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from wattcast.app.cli import exits, group
from wattcast.features.errors import MissingExtraError, WattcastError

app = typer.Typer(
    name="wattcast",
    cls=group.Root,
    help="Power, time and energy of a CUDA kernel from its PTX or source, before anyone runs it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_CLICKS: Any = typer.BadParameter.__mro__[2]
"""``ClickException`` of the click that typer brings along, which has no public name."""

_COLLECT_AFTER = 200_000
"""New objects before garbage is looked for (CPython: 700). A start makes some 100 000, none of them
garbage, and looking takes a tenth of its time. The service sets its own (``server.py``)."""


def main() -> NoReturn:
    """Entry point: every foreseen error is one line on stderr and an exit status."""
    gc.set_threshold(_COLLECT_AFTER)
    # To look for plug-ins of pydantic, all packages that are installed are searched.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Products here are small. Shared with a second thread they wait for it where cores are busy:
    # eight Triton products took 31 s instead of 8 beside 13 processes on two cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        status = app(prog_name="wattcast", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else exits.Exit.DONE)
    except typer.BadParameter as error:
        about = getattr(error.param, "help", None) or ""
        exits.fail(f"{error.format_message()} {about}", exits.Exit.BAD_INPUT)
    except _CLICKS as error:
        if len(sys.argv) < 2:
            error.show()  # the help
            sys.exit(error.exit_code)
        exits.fail(error.format_message(), error.exit_code)
    except typer.Abort:
        sys.exit(exits.Exit.NO_ANSWER)
    except WattcastError as error:
        exits.fail(str(error), exits.status_of(getattr(error, "kind", error.slug)))
    except ModuleNotFoundError as error:
        if (missing := MissingExtraError.of(error)) is None:
            raise
        exits.fail(str(missing), exits.Exit.NO_ANSWER)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; say nothing more
        sys.exit(exits.Exit.NO_ANSWER)
    except ConnectionError as error:  # of a cluster or of worker processes
        exits.fail(str(error), exits.Exit.NO_ANSWER)
    except ValueError as error:
        exits.fail(_one_line(error), exits.Exit.BAD_INPUT)


def _one_line(error: ValueError) -> str:
    """What pydantic says of a request. Raises any other error again."""
    from pydantic import ValidationError

    from wattcast.predictor.messages import one_line

    if not isinstance(error, ValidationError):
        raise error
    return one_line(error)


def _show_version(wanted: bool) -> None:
    if wanted:
        from wattcast.app.settings import installed_version

        print(f"wattcast {installed_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the command."""


if __name__ == "__main__":
    main()
