# SPDX-License-Identifier: Apache-2.0
from setuptools import setup

setup(
    cffi_modules=["transport_c/build_engine.py:ffibuilder", "transport_c/build_simulator.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
