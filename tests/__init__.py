"""What the product promises."""

import os

# Several workers of pytest-xdist share the cores: one thread each, here and in every process that a test starts. Set
# before torch is imported, which reads it once; spinning threads of other workers would slow each other down manifold.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
