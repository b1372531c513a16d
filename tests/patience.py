# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for a daemon's last word.

A trainer gives its daemon 50 ms after an op's deadline to say how it ended. On a test machine whose few cores are busy
with other things its thread may not get one by then, and a test of what an op ends with would hear of an unresponsive
daemon instead. A daemon that is really stopped is found out all the same, a little later.
"""

from ultima.api import connection

GRACE_S = 0.5


def be_patient() -> None:
    """In this process, from now on."""
    connection.GRACE_NS = int(GRACE_S * 1e9)
