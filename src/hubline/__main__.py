"""``python -m hubline``: the same as the command ``hubline``."""

import sys

from hubline.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
