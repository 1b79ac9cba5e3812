"""``python -m uneven``: the command."""

from uneven.cli import main

main()
