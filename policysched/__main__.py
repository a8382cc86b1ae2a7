"""`python -m policysched` runs the `policysched` command."""

from policysched.cli import main

if __name__ == "__main__":
    main()
