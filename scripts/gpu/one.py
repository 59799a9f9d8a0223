"""One check in a process of its own: one.py MODULE.FUNCTION CONTEXT ARGS. The runner reads the lines that it prints."""
import importlib
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace


def emit(kind, values):
    print(json.dumps({kind: values}), flush=True)


def details(**values):
    """Keeps figures even if the check hangs or dies later."""
    emit("details", values)


def main():
    work, context, args = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    plant = os.environ.get("NESTOR_GPU_CHECK_PLANT")
    if plant:
        # In a session of its own, as the ranks of a launcher have groups of their own.
        below = subprocess.Popen(["sleep", "600"], start_new_session=True)
        details(planted=plant, below=below.pid)
        if plant == "crash":
            os.abort()
        time.sleep(600)
    module, function = work.split(".")
    # The modules of checks import `details` from this file under its name, not as __main__.
    sys.modules["one"] = sys.modules["__main__"]
    emit("result", getattr(importlib.import_module(module), function)(SimpleNamespace(**context), **args))


if __name__ == "__main__":
    main()
