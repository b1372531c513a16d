# SPDX-License-Identifier: Apache-2.0
"""The one category of what this library warns of, for `warnings.filterwarnings`."""


class UltimaWarning(RuntimeWarning):
    """Something that a person should know while the program goes on: UDP is blocked, a rank is waited for."""
