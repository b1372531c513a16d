# SPDX-License-Identifier: Apache-2.0
"""One job on this host from join to leave: its paths to other hosts, who watches whom, changes of its options."""
