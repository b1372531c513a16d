# SPDX-License-Identifier: Apache-2.0
"""The Debian package on fresh roots, as an operator uses it: install, train on two hosts, find a fault, upgrade, purge.

`make deb-test` runs it: as root, with debootstrap and Debian's archive, in about five minutes. The two hosts are roots
of their own in network namespaces. There is no systemd in them; what it would do is done by hand: users, folders, the
environment of the unit, and the restart that follows an upgrade.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab, unavailable

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = "http://deb.debian.org/debian"
NEEDED = "python3,libssl3,systemd-standalone-sysusers,iproute2,passwd"
# What changes without a package's doing, or belongs to dpkg itself.
PASSING = ("/proc/", "/dev/", "/tmp/", "/var/lib/dpkg/", "/var/cache/", "/var/log/", "/etc/passwd-", "/etc/group-")
PASSING += ("/etc/shadow-", "/etc/gshadow-", "/root/", "/run/")
TRAIN = """
import sys, time, numpy, ultima
job, seconds = ultima.connect(timeout=60), float(sys.argv[1])
began, ops, again = time.monotonic(), 0, 0
while time.monotonic() - began < seconds:
    data = numpy.full(100_000, float(job.rank + 1), numpy.float32)
    try:
        receipt = job.allreduce(data, "sum", deadline="2s")
    except ultima.DaemonLost:
        job, again = ultima.connect(timeout=60), again + 1
        continue
    ops += bool(receipt.complete and (data == 3).all())
    time.sleep(0.05)
print("complete", ops, "connected again", again)
"""

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(1200)]


class Machine:
    """A root folder with Debian in it, at the network of one of a lab's hosts."""

    def __init__(self, root: Path, lab: Lab, rank: int) -> None:
        self.root, self.lab, self.rank = root, lab, rank
        self.daemon: subprocess.Popen[str] | None = None

    def run(self, *command: str, check: bool = True) -> str:
        """Runs a command there, and returns all that it printed."""
        done = self.lab.host(self.rank).run(["chroot", str(self.root), *command], timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{command}: {said} (exit status {done.returncode})"
        return said

    def files(self) -> set[str]:
        """All paths there, but those that change by themselves."""
        found = subprocess.run(["find", str(self.root), "-xdev"], capture_output=True, text=True, check=True).stdout
        paths = (line.removeprefix(str(self.root)) for line in found.splitlines())
        return {path for path in paths if not (path + "/").startswith(PASSING) and "__pycache__" not in path}

    def start(self) -> None:
        """Does what the unit does: its folders, its user, its environment."""
        self.run("install", "-d", "-o", "ultima", "-g", "ultima", "/run/ultima", "/var/lib/ultima")
        command = ["chroot", str(self.root), "setpriv", "--reuid", "ultima", "--regid", "ultima", "--clear-groups"]
        command += ["env", "STATE_DIRECTORY=/var/lib/ultima", "ultimad"]
        log = (self.root / "tmp/log").open("a")
        self.daemon = self.lab.host(self.rank).popen(command, stderr=log, text=True)
        self.run("ultima", "wait", "--healthy", "--timeout", "60s")

    def stop(self) -> None:
        assert self.daemon
        self.daemon.terminate()
        self.daemon.wait(30)

    def train(self, seconds: float) -> subprocess.Popen[str]:
        environment = {"RANK": str(self.rank), "WORLD_SIZE": "2", "MASTER_ADDR": self.lab.host(0).address}
        command = ["chroot", str(self.root), "/usr/lib/ultima/bin/python3", "-c", TRAIN, str(seconds)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        child: subprocess.Popen[str] = self.lab.host(self.rank).popen(command, environment, **pipes)
        return child


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The package, and the same as a later version."""
    ret = []
    for version in ("", "0.1.0+later"):
        folder = tmp_path_factory.mktemp("deb")
        environment = {**os.environ, "VERSION": version}
        subprocess.run([str(ROOT / "deploy/deb/build"), str(folder)], env=environment, check=True)
        ret.extend(folder.glob("*.deb"))
    return ret


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Two fresh roots."""
    if why := unavailable() or ("" if shutil.which("debootstrap") else "fresh roots need debootstrap"):
        pytest.skip(why)
    first = tmp_path / "h0"
    command = ["debootstrap", "--variant=minbase", f"--include={NEEDED}", "bookworm", str(first), ARCHIVE]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    roots = [first, tmp_path / "h1"]
    subprocess.run(["cp", "-a", *map(str, roots)], check=True)
    mounted: list[Path] = []
    try:
        for root in roots:
            for name, options in (("proc", ["-t", "proc", "proc"]), ("dev", ["--bind", "/dev"])):
                subprocess.run(["mount", *options, str(root / name)], check=True)
                mounted.append(root / name)
        with Lab(2) as lab:
            yield [Machine(root, lab, rank) for rank, root in enumerate(roots)]
    finally:
        for folder in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        for root in roots:
            shutil.rmtree(root, ignore_errors=True)


def everywhere(machines: list[Machine], what: Callable[[Machine], object]) -> None:
    for machine in machines:
        what(machine)


def install(machine: Machine, package: Path) -> None:
    shutil.copy(package, machine.root / "tmp/ultima.deb")
    machine.run("dpkg", "--install", "/tmp/ultima.deb")


def certify(machines: list[Machine]) -> None:
    """As docs/recipes.md says."""
    first = machines[0]
    first.run("ultima", "ca", "init", "--dir", "/etc/ultima")
    for machine in machines:
        name = f"n{machine.rank}"
        first.run("ultima", "ca", "issue", name, "--dir", "/etc/ultima")
        for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
            if machine is not first:
                shutil.copy(first.root / "etc/ultima" / file, machine.root / "etc/ultima" / file)
            machine.run("chown", "ultima:ultima", f"/etc/ultima/{file}")
        with (machine.root / "etc/ultima/ultimad.toml").open("a") as settings:
            settings.write('[tls]\nauthority = "/etc/ultima/ca.crt"\n')
            settings.write(f'certificate = "/etc/ultima/{name}.crt"\nkey = "/etc/ultima/{name}.key"\n')
        text = (machine.root / "etc/ultima/ultimad.toml").read_text()
        address = machine.lab.host(machine.rank).address
        (machine.root / "etc/ultima/ultimad.toml").write_text(text.replace('#: bind = ""', f'bind = "{address}"'))


def test_deb__install_train_break_upgrade_purge(machines: list[Machine], packages: list[Path]) -> None:
    first, second = machines
    before = [machine.files() for machine in machines]
    everywhere(machines, lambda machine: install(machine, packages[0]))
    assert "ultima 0.1.0" in first.run("ultima", "--version")
    assert (first.root / "usr/share/man/man1/ultima-doctor.1.gz").exists()
    certify(machines)
    everywhere(machines, Machine.start)

    trainers = [machine.train(40) for machine in machines]
    time.sleep(5)
    assert "COMPLETE" in first.run("ultima", "status") or "complete" in first.run("ultima", "status")
    first.lab.set_one_way([(0, 1), (1, 0)], protocol="udp")
    limit = time.monotonic() + 15
    while "does not get through" not in (said := first.run("ultima", "status")):
        assert time.monotonic() < limit, said
        time.sleep(0.5)
    assert "29521" in first.run("ultima", "doctor", check=False), "the port is named"
    first.lab.set_one_way([])

    second.run("dpkg", "--install", "/tmp/ultima.deb")  # the same again, while a job runs
    install(second, packages[1])
    second.stop()  # as the package's script has systemd do it
    second.start()
    for trainer in trainers:
        said, _ = trainer.communicate(timeout=120)
        words = said.splitlines()[-1].split()
        assert words[0] == "complete" and int(words[1]) > 100 and trainer.returncode == 0, said
    assert "0.1.0+later" in second.run("dpkg-query", "--show", "ultima")
    assert "bind = " in (second.root / "etc/ultima/ultimad.toml").read_text(), "settings stay"

    everywhere(machines, Machine.stop)
    for machine, had in zip(machines, before, strict=True):
        machine.run("rm", "-f", *(f"/etc/ultima/{name}" for name in ("ca.crt", "ca.key", "ca.srl")))
        machine.run("sh", "-c", "rm -f /etc/ultima/n?.crt /etc/ultima/n?.key")  # the operator's own
        machine.run("dpkg", "--purge", "ultima")
        assert machine.files() - had == set()
        assert "ultima" not in (machine.root / "etc/passwd").read_text() + (machine.root / "etc/group").read_text()
