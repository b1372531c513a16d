# SPDX-License-Identifier: Apache-2.0
"""One job on this host from join to leave: its ranks, its paths to other hosts, who watches whom, and its options."""
