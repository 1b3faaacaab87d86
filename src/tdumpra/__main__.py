"""``python -m tdumpra``."""

from tdumpra.cli.main import program

if __name__ == "__main__":  # not in a worker process, which imports this module under another name
    program()
