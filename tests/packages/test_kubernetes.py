# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet says the same as the image, the service and the daemon itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from ultima.cli.main import build
from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.process.main import parse

ROOT = Path(__file__).resolve().parents[2]
UNIT = (ROOT / "deploy/systemd/ultimad.service").read_text()


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    """By kind."""
    with (ROOT / "deploy/kubernetes/daemonset.yaml").open() as file:
        return {document["kind"]: document for document in yaml.safe_load_all(file)}


@pytest.fixture(scope="module")
def daemon(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The one container that stays."""
    (container,) = documents["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_daemonset__its_options_are_the_daemons(documents: dict[str, dict[str, Any]], daemon: dict[str, Any]) -> None:
    options = tomllib.loads(documents["ConfigMap"]["data"]["ultimad.toml"])
    read = DaemonConfig.model_validate(options)
    assert read.allow_uids == [1000] and read.tls.authority == "/etc/ultima/pki/ca.crt" and not read.insecure
    flags = parse([word.replace("$(NODE_ADDRESS)", "10.0.0.1") for word in daemon["args"]])
    assert flags == {"config": "/etc/ultima/config/ultimad.toml", "bind": "10.0.0.1"}
    assert [port["containerPort"] for port in daemon["ports"]] == [read.port]


def test_daemonset__runs_as_the_images_user_within_the_services_memory(
    documents: dict[str, dict[str, Any]], daemon: dict[str, Any]
) -> None:
    (user,) = re.findall(r"(?m)^user=(\d+)", (ROOT / "deploy/image/build").read_text())
    pod = documents["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == int(user)
    assert user in pod["initContainers"][0]["command"]
    (memory,) = re.findall(r"(?m)^MemoryMax=(\d+)G$", UNIT)
    assert daemon["resources"]["limits"]["memory"] == f"{memory}Gi"
    (stop,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT)
    assert pod["terminationGracePeriodSeconds"] == int(stop)
    assert daemon["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_daemonset__its_probes_are_a_verb_that_exists(daemon: dict[str, Any]) -> None:
    commands: Any = typer.main.get_command(build())
    options = {name for parameter in commands.commands["wait"].params for name in parameter.opts}
    for probe in (daemon["startupProbe"], daemon["livenessProbe"]):
        program, verb, *rest = probe["exec"]["command"]
        assert (program, verb) == ("ultima", "wait") and {word for word in rest if word[:2] == "--"} <= options
        assert int(rest[-1].removesuffix("s")) < probe["timeoutSeconds"], "it ends by itself"


def test_daemonset__every_mount_has_its_volume(documents: dict[str, dict[str, Any]], daemon: dict[str, Any]) -> None:
    pod = documents["DaemonSet"]["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"] for one in (daemon, *pod["initContainers"]) for mount in one["volumeMounts"]}
    assert mounts == volumes
