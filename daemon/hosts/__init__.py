# SPDX-License-Identifier: Apache-2.0
"""The other hosts: what a host is, what its daemon may say of itself and of a job, and how the hosts of a job meet."""
