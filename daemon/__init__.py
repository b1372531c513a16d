# SPDX-License-Identifier: Apache-2.0
"""`ultimad`: the control plane that runs once on every host.

It decides who belongs to a job, hands shared memory to trainers, connects the hosts of a job, and watches over all of
them. It never touches a tensor: the C engine behind `engine.py` moves those.

Reading order: main (the process), server (what is put together), attach (a trainer comes), trainer_service and jobs
(it becomes a rank), rendezvous (all ranks are there), links and peers (the hosts find each other), progress and stats
(how it goes).
"""
