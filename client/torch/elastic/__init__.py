# SPDX-License-Identifier: Apache-2.0
"""Training of a torch model in a job whose hosts come and go: a newcomer follows the others until it has caught up."""
