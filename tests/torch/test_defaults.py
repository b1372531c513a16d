# SPDX-License-Identifier: Apache-2.0
"""What the program sets for itself, torch's default element type and device, means nothing for our own tensors."""

import ast

import pytest

from tests.nursery import ROOT

MAKERS = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}


def test_tensors__of_our_own_name_their_type_and_device() -> None:
    found, wrong = 0, []
    for path in sorted((ROOT / "client" / "torch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if not (isinstance(called, ast.Attribute) and called.attr in MAKERS):
                continue
            if isinstance(called.value, ast.Name) and called.value.id == "torch":
                assert isinstance(node, ast.Call)
                found += 1
                if not {"dtype", "device"} <= {word.arg for word in node.keywords}:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: torch.{called.attr}")
    assert found > 10 and wrong == []


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_memory__of_a_gradient_on_a_device_is_float32(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from ultima.sparse import Feedback
    from ultima.torch.sparse.device import DeviceFeedback

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, kind))
    try:
        memory = DeviceFeedback(100, torch.device("cpu"), Feedback(1, 0.1, momentum=0.9))
        _, values = memory.select(torch.arange(100, dtype=torch.float32))
    finally:
        torch.set_default_dtype(before)
    assert values.dtype is memory.residual.dtype is torch.float32
