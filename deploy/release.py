# SPDX-License-Identifier: Apache-2.0
"""A release: the archives, what is in them, their hashes, and a signature over those.

    make release ARGS="--key ~/.ssh/release"         builds into dist/, and signs
    python deploy/release.py verify DIST SIGNERS     what a user runs who has the maintainers' public keys

DIST holds the source archive, the wheels (deploy/wheels.py), the Debian package of this machine (deploy/deb/build),
`ultima-VERSION.cdx.json` (a software bill of materials in
CycloneDX, made of deploy/requirements.lock by cyclonedx-py: each dependency with its version and hashes), `SHA256SUMS`
over all of them, and `SHA256SUMS.sig`. Signatures are OpenSSH's (ssh-keygen -Y, namespace "ultima-release"), which
needs no other tool and takes keys that live in a hardware token. SIGNERS is a file of allowed signers as ssh-keygen(1)
describes it, one line each: `releases@ultima ssh-ed25519 AAAA...`.

Nothing is signed that is not committed. Archives carry the time of the commit and not of the build.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "deploy/requirements.lock"
SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"
NAMESPACE = "ultima-release"
SIGNER = "releases@ultima"


class Refused(Exception):
    """The release cannot be made, or is not what it says; the message is for people."""


def run(*command: str, stdin: bytes = b"", at: Path = ROOT, **environment: str) -> bytes:
    """What the command prints. Raises Refused with what it said if it failed."""
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=at, env=os.environ | environment)
    if done.returncode:
        raise Refused(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).decode(errors='replace').strip()}")
    return done.stdout


def version() -> str:
    """Of the project."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def check_tree() -> str:
    """The time of the commit, seconds since 1970. Raises Refused if something is not committed."""
    changed = run("git", "status", "--porcelain").decode().splitlines()
    if changed:
        raise Refused(f"{len(changed)} files are not committed, the first is {changed[0][3:]}: commit or stash them")
    return run("git", "show", "-s", "--format=%ct", "HEAD").decode().strip()


def build(dist: Path, epoch: str) -> None:
    """Source archive, wheels and Debian package."""
    make = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
    venv = str(Path(sys.executable).parents[1])
    for command in (
        (sys.executable, "-c", make, str(dist)),
        (sys.executable, "deploy/wheels.py", "--out", str(dist)),
        ("deploy/deb/build", str(dist)),
    ):
        run(*command, SOURCE_DATE_EPOCH=epoch, VENV=venv)


def bill(dist: Path) -> Path:
    """The bill of materials."""
    path = dist / f"ultima-{version()}.cdx.json"
    tool = str(Path(sys.executable).parent / "cyclonedx-py")
    flags = ("--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON", "--output-reproducible", "--validate")
    run(tool, "requirements", str(LOCK), *flags, "-o", str(path))
    return path


def sums_of(dist: Path) -> str:
    """SHA256SUMS: a line for each file but itself and its signature. Raises Refused for what is no plain file."""
    files = sorted(path for path in dist.iterdir() if path.name not in (SUMS, SIGNATURE))
    for path in files:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise Refused(f"{path}: is a folder, a link or no file at all: a release holds plain files alone")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def sign(dist: Path, key: Path) -> None:
    """Writes SHA256SUMS and its signature."""
    (dist / SUMS).write_text(sums_of(dist))
    (dist / SIGNATURE).unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(dist / SUMS))


def verify(dist: Path, signers: Path) -> None:
    """Raises Refused unless one of `signers` has signed just these files."""
    for name in (SUMS, SIGNATURE):
        if not (dist / name).is_file():
            raise Refused(f"{dist / name}: is missing")
    signed = (dist / SUMS).read_bytes()
    flags = ("-f", str(signers), "-I", SIGNER, "-n", NAMESPACE, "-s", str(dist / SIGNATURE))
    run("ssh-keygen", "-Y", "verify", *flags, stdin=signed)
    if signed.decode() != sums_of(dist):
        there, named = set(sums_of(dist).splitlines()), set(signed.decode().splitlines())
        wrong = sorted(line.split("  ", 1)[-1] for line in there ^ named)
        raise Refused(f"{dist}: differs from what was signed: {', '.join(dict.fromkeys(wrong))}")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Makes and checks releases.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    makes = verbs.add_parser("make", help="build, list, hash and sign")
    makes.add_argument(
        "--key", type=Path, required=True, help="private key for ssh-keygen, or the public one of an agent"
    )
    makes.add_argument("--dist", type=Path, default=ROOT / "dist")
    checks = verbs.add_parser("verify", help="check what was downloaded")
    checks.add_argument("dist", type=Path)
    checks.add_argument("signers", type=Path)
    flags = parser.parse_args()
    try:
        if flags.verb == "verify":
            verify(flags.dist, flags.signers)
            print(f"{flags.dist}: {len(sums_of(flags.dist).splitlines())} files, as signed by {SIGNER}")
            return 0
        epoch = check_tree()
        flags.dist.mkdir(parents=True, exist_ok=True)
        if any(flags.dist.iterdir()):
            raise Refused(f"--dist {flags.dist}: is not empty: a release holds what was built for it and nothing else")
        build(flags.dist, epoch)
        bill(flags.dist)
        sign(flags.dist, flags.key)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print((flags.dist / SUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
