"""`python -m drumline` is the command `drumline`."""

from drumline.cli.app import main

if __name__ == "__main__":
    main()
