"""What IPEX does beside a torch of another minor."""

import os
import sys

print("ERROR! Intel(R) Extension for PyTorch* needs to work with PyTorch 2.8.*", file=sys.stderr)
os._exit(127)
