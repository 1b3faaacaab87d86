"""``python -m tdumpra``."""

from tdumpra.cli.main import main

main()
