"""A driver that never answers, in a process that does not listen to an interrupt."""

import signal
import sys
import time

if any(argument.endswith("payload.pyz") for argument in sys.orig_argv):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(3600)
