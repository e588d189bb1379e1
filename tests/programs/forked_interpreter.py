"""Stand for an interpreter that tests.warm forks: ask for it, and end when it ends.

The fork has imported all that its children need, so they import nothing once more.
"""

import json
import os
import select
import socket
import sys

asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect("\0" + os.environ["TESTS_FORK_INTERPRETERS_AT"])
opened = [int(name) for name in os.listdir("/proc/self/fd")]
fds = [fd for fd in opened if fd != asking.fileno() and os.path.exists(f"/proc/self/fd/{fd}")]
asked = {"fds": fds, "cwd": os.getcwd(), "environ": {**os.environ}, "words": sys.argv[1:]}
socket.send_fds(asking, [json.dumps(asked).encode()], fds)
for fd in fds:
    os.close(fd)  # or the launcher would not see what closes
ended = os.pidfd_open(int(asking.recv(20)))
select.select([ended], [], [])
