"""Stand for a fork server that tests.warm has forked: ask for it, and end when it ends.

Its process has imported all that the nodes need, so they import nothing once more.
"""

import json
import os
import socket
import sys

address, sys_path, spec = sys.argv[1:]
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect(f"\0{address}")
opened = [int(name) for name in os.listdir("/proc/self/fd")]
fds = [fd for fd in opened if fd != asking.fileno() and os.path.exists(f"/proc/self/fd/{fd}")]
asked = {"fds": fds, "cwd": os.getcwd(), "environ": {**os.environ}}
asked |= {"sys_path": json.loads(sys_path), "spec": spec}
socket.send_fds(asking, [json.dumps(asked).encode()], fds)
for fd in fds:
    os.close(fd)  # or the launcher would not see what closes
asking.recv(1)
