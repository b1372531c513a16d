# SPDX-License-Identifier: Apache-2.0
"""What every room of the client may use: exceptions, receipts, durations, and the words and arrays of the interface.

Nothing here knows of a daemon, a job or a process.
"""
