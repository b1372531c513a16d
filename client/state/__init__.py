# SPDX-License-Identifier: Apache-2.0
"""State that a newcomer of an elastic job takes from the ranks that are in: what it is made of, whose is chosen, and
how its parts are fetched from several hosts at once. What a program calls is in api/newcomers.py."""
