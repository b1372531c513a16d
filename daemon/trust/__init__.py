# SPDX-License-Identifier: Apache-2.0
"""Who this daemon is to its peers, how it knows them, and what it says where that fails."""
