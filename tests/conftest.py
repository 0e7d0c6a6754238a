"""Settings that every test needs before torch is loaded."""

import os

# The tests share few cores with the processes they start: one thread each, and threads that wait must sleep.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
