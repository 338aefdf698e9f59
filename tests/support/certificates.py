"""A certificate for servers of tests, on loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    made = (folder / "cert.pem", folder / "key.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]  # made in no time
    command = ["openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-out", str(made[0]), "-keyout", str(made[1])]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return made
