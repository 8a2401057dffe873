"""Says what a good payload would say, and ends before the real one has begun.

It knows what ties a report to its run: the tests are about what else gives it away.
"""

import os
import sys
from pathlib import Path

if any(argument.endswith("payload.pyz") for argument in sys.orig_argv):
    run_id = sys.orig_argv[sys.orig_argv.index("--run-id") + 1]
    line = Path(__file__).with_name("forged.jsonl").read_text()
    os.write(1, line.replace("RUN-ID", run_id).encode())
    os._exit(int(Path(__file__).with_name("forged.code").read_text()))
