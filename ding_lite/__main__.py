"""`python -m ding_lite` is the same as `ding-lite`."""

import sys

from ding_lite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
