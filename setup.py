# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

from setuptools import setup


def description() -> str:
    """README.md for the page of a package index, which has none of our other files: pictures are left out, and what
    links to a file of this repository becomes plain text.
    """
    text = (Path(__file__).parent / "README.md").read_text()
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    cffi_modules=["transport_c/build_engine.py:ffibuilder", "transport_c/build_simulator.py:ffibuilder"],
    long_description=description(),
    long_description_content_type="text/markdown",
    # The two extensions are compiled side by side.
    options={"bdist_wheel": {"py_limited_api": "cp311"}, "build_ext": {"parallel": True}},
)
