# SPDX-License-Identifier: Apache-2.0
"""What every room of the daemon may use: errors, ranges, waiting, logs, quotas, addresses, options."""
