"""Begins a command again that failed, but for the codes that say never, as systemd and Kubernetes do."""

import signal
import subprocess
import sys
import time

if __name__ == "__main__":
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda *_: None)  # the command gets it, too
    while (code := subprocess.call(sys.argv[1:])) not in {0, 2, 3, 4, 5, 6, 130, 143}:
        time.sleep(0.5)
    sys.exit(code)
