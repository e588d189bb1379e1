"""`ding-lite keygen`."""

from __future__ import annotations

import stat

from ding_lite.parallel.network.security import load_key


def test_a_key_is_written_for_its_owner_only_and_never_over_another(typed, tmp_path) -> None:
    file = tmp_path / "job.key"
    code, out, error = typed(tmp_path, "keygen", "job.key")
    assert (code, error) == (0, "")
    assert out.startswith(f"Wrote a new key to {file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    assert written.split()[-1].decode() not in out  # a secret must not end in a log
    load_key(file)

    code, out, error = typed(tmp_path, "keygen", "job.key")
    assert (code, out) == (2, "")
    assert error.startswith("ding-lite keygen: job.key exists already. Name another file")
    assert file.read_bytes() == written
