"""The `eyas` command, also as `python -m eyas`. Ctrl-C while the program itself is still being read ends it quietly."""

import sys


def run() -> None:
    """Entry point of the `eyas` script."""
    try:
        from eyas.cli.app import run as run_app

        run_app()
    except KeyboardInterrupt:
        sys.stderr.write("eyas: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
