# SPDX-License-Identifier: Apache-2.0
"""A daemon for your own tests, in the test's own process: `FakeDaemon`."""

from ultima.testing.fake_daemon import FakeDaemon

__all__ = ["FakeDaemon"]
