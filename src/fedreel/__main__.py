"""`python -m fedreel` is the `fedreel` command."""

from fedreel.cli import main

if __name__ == "__main__":  # worker processes import this file too
    main()
