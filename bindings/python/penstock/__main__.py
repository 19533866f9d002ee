"""`python -m penstock` is the `penstock` command."""

from penstock._command import main

main()
