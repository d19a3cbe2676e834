"""All verbs together, and what their errors mean to the shell."""

from __future__ import annotations

import sys

import typer

from corald.cli import check, live, plan, running, templates
from corald.cli.common import Exit, exit_code_of, harmless
from corald.errors import CoraldError

CLICK_USAGE = 2
"""What the parser itself would exit with; here 2 means that a plan changes something."""


def _app() -> typer.Typer:
    app = typer.Typer(
        name="corald",
        help="Autoscaler for serving several LLMs on rented GPUs of many kinds, at least cost.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 100},
    )
    for verbs in (running, check, plan, live):
        verbs.register(app)
    app.add_typer(templates.app(), name="templates")
    return app


def run(arguments: list[str]) -> int:
    """Run a verb and answer with its exit code; deliberate errors become one line each."""
    try:
        result = _app()(arguments, prog_name="corald", standalone_mode=False)
    except typer.TyperException as error:
        message = error.format_message()
        print(message if message.startswith("Usage:") else f"corald: {message}", file=sys.stderr)
        return Exit.USAGE if error.exit_code == CLICK_USAGE else Exit.ERROR
    except typer.Abort:
        return Exit.ERROR
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to say it to.
        sys.stderr.close()
        return Exit.ERROR
    except (CoraldError, ExceptionGroup) as error:
        found = _deliberate(error)
        for line in str(found).splitlines():
            print(f"corald: {harmless(line)}", file=sys.stderr)
        return exit_code_of(found)
    return int(result or 0)


def _deliberate(error: Exception) -> CoraldError:
    """Take the deliberate error out of what tasks raised together; a bug goes on as it is."""
    if isinstance(error, CoraldError):
        return error
    if isinstance(error, ExceptionGroup):
        matching, rest = error.split(CoraldError)
        if matching is not None and rest is None:
            leaf: BaseException = matching
            while isinstance(leaf, BaseExceptionGroup):
                leaf = leaf.exceptions[0]
            if isinstance(leaf, CoraldError):
                return leaf
    raise error
