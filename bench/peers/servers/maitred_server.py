"""maitred as it comes: default settings, one replica in a process of its own (as `auto` has it for these models).

Variants: `plain`, a free replica takes at once what waits, and waits for nobody who was answered just now; `fronts=N`,
so many processes own the connections.
"""
import os
import sys
import tempfile

from _common import HERE, args

a = args()
CLASS = {"overhead": "Overhead", "slow": "Slow", "curve": "Curve", "minilm": "MiniLM"}[a.model]
os.environ["MAITRED_HOME"] = tempfile.mkdtemp(prefix="bench-maitred-")
os.environ["MAITRED_ADMIN_LISTEN"] = f"127.0.0.1:{a.aux_port}"
command = ["serve", f"{a.model}={HERE}/maitred_model.py:{CLASS}", "--kind", "process",
           "--listen", f"127.0.0.1:{a.port}"]
for opt in a.opt:
    if opt.startswith("fronts="):
        command += ["--fronts", opt.removeprefix("fronts=")]
if "plain" not in a.opt:
    os.execv(sys.executable, [sys.executable, "-m", "maitred.cli.main", *command])

from maitred.cli.main import main  # noqa: E402
from maitred.scheduling.returning import Returning  # noqa: E402

Returning.learn = lambda self, fixed_seconds: None
sys.argv[1:] = command
main()
