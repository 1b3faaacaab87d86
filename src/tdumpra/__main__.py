"""``python -m tdumpra``."""

from tdumpra.cli import main

main()
