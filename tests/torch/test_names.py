# SPDX-License-Identifier: Apache-2.0
"""The public names of `ultima.torch`, some of which are loaded when they are first asked for."""

import importlib
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima.torch


@pytest.mark.parametrize("name", ultima.torch.__all__)
def test_names__each_is_there(name: str) -> None:
    home = ultima.torch._HOME_OF.get(name)
    found = getattr(ultima.torch, name)
    assert found is not None and (home is None or getattr(sys.modules[f"ultima.torch.{home}"], name) is found)


def test_names__those_that_are_loaded_later_are_public() -> None:
    assert ultima.torch._HOME_OF.keys() <= {*ultima.torch.__all__}


@pytest.mark.parametrize("package", ["coded", "partial", "sparse"])
def test_packages__are_attributes_without_an_import_of_their_own(package: str) -> None:
    assert ultima.torch.__getattr__(package) is importlib.import_module(f"ultima.torch.{package}")


def test_names__one_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"module 'ultima\.torch' has no attribute 'nothing'"):
        _ = ultima.torch.nothing
