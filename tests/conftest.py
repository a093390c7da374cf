"""One thread a process, since pytest runs several, and no network. Read when torch loads, so before any test module."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
