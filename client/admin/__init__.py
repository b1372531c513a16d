# SPDX-License-Identifier: Apache-2.0
"""For whoever runs a cluster: asks and tells the daemon on this host, and puts receipts into words."""
