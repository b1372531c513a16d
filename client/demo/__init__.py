# SPDX-License-Identifier: Apache-2.0
"""The main job in small: four daemons and four ranks on this machine train LeNet-5 with unmodified DDP.

`ultima demo` starts it. `train` is an ordinary torch script that torchrun starts just as well; `cluster` starts and
stops the processes; `data` finds the images; `report` says what came of it.
"""
