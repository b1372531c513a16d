# SPDX-License-Identifier: Apache-2.0
"""Where other hosts reach this one."""

import socket

from ultima.launch.reach import address_towards


def test_address_towards__this_host_as_others_see_it() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1") == "::1"
