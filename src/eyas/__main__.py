"""`python -m eyas` is the `eyas` command."""

from eyas.cli.app import run

if __name__ == "__main__":
    run()
