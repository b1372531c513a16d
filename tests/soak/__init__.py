# SPDX-License-Identifier: Apache-2.0
"""`make soak`: real daemons under jobs that come, go and are killed, and how their memory grows meanwhile."""
