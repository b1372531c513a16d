# SPDX-License-Identifier: Apache-2.0
"""The status page: jobs, peers, events and the reason why it is slow now, in a browser on this host."""
