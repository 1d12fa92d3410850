"""The worker that runs real models."""

import os

# OpenMP's threads wait for each other by spinning, by default for milliseconds: when anything else wants a core,
# every one of a step's hundreds of parallel passes loses a time slice. This spans the gaps within a step and not
# much more. It is read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "4000")
