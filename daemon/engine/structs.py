# SPDX-License-Identifier: Apache-2.0
"""What the daemon asks of a job, as the driver's structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultima.daemon.engine.option_struct import job_options

if TYPE_CHECKING:
    from ultima.daemon.engine.engine import JobConfig


def job_config(ffi: Any, lib: Any, config: JobConfig) -> Any:
    """A struct ut_job_config."""
    values = {
        "hosts": config.hosts,
        "self": config.self_index,
        "local_ranks": config.local_ranks,
        "packet_bytes": config.packet_bytes,
        "world": config.world,
        "bucket_bytes_max": config.bucket_bytes_max,
        "rate_bytes_per_s": config.rate_bytes_per_s,
        "first_op_seq": config.first_op_seq,
        "ranks_of": config.ranks_of,
        "options": job_options(config.options),
        "cipher": lib.ut_driver_cipher() if config.sealed else ffi.NULL,
    }
    return ffi.new("ut_job_config *", values)
