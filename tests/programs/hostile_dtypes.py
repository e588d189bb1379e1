"""Read a checkpoint with one dtype of its array after another."""

import sys
from pathlib import Path

from ding_lite.errors import CheckpointError
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from tests.rl.checkpoint.test_reading import body_of, write

folder = Path(sys.argv[1])
body = body_of(folder)
for code in sys.argv[2:]:
    body["state"]["large"]["$rows"]["dtype"] = code
    write(folder, body)
    try:
        array = load_checkpoint(folder).state["large"]
        print(code, "read:", array.dtype, array[:3])
    except CheckpointError:
        print(code, "refused")
