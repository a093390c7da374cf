"""``python -m hyvlm`` and ``torchrun -m hyvlm`` run the same command line as ``hyvlm``."""

import sys

from hyvlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
