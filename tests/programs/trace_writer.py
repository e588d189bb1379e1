"""Write records to a trace, open and close it several times, or keep it open."""

import os
import sys
from pathlib import Path

from ding_lite.runtime.trace.file import TraceFile

path, since_ns, name, times, count = sys.argv[1:]
for time in range(int(times)):
    file = TraceFile(Path(path), int(since_ns))
    for number in range(int(count)):
        file.write({"by": name, "time": time, "number": number, "filler": "x" * (number % 300)})
    file.close()
if count == "0":  # one that is killed while it has the file
    file = TraceFile(Path(path), int(since_ns))
    file.write({"by": name})
    os.write(1, b"open\n")
    sys.stdin.read()
