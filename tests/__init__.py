# SPDX-License-Identifier: Apache-2.0
"""All tests, as one package: run scripts among them with `python -m tests.bench.main`, not by path.

By path Python would put their folder first on its search path, where `torch` and `daemon` mean the tests of them.
"""
