"""Reads topics, groups and keys of a Freezeframe server as of any moment.

    import freezeframe as ff
    server = ff.connect("http://127.0.0.1:8080")
    server.topic("orders").at("yesterday 14:00").to_pandas()

The past comes over the server's HTTP port (`freezeframe serve --http`). Kafka clients read it too, under the names that
`moment_topic` returns.
"""

from .documents import (
    Change,
    CommittedOffset,
    Cut,
    GroupAtMoment,
    GroupMember,
    PartitionCut,
    Pin,
    SeekResult,
    SoughtOffset,
    TopicAtMoment,
)
from .errors import (
    BeforeHistoryError,
    ConflictError,
    Error,
    NotFoundError,
    NotYetError,
    RequestError,
    TlsError,
    UnauthorizedError,
    UnavailableError,
)
from .moments import Moment, MomentLike, moment_topic
from .records import Record, TopicView
from .server import Diff, Group, Server, __version__, connect

__all__ = [
    "BeforeHistoryError",
    "Change",
    "CommittedOffset",
    "ConflictError",
    "Cut",
    "Diff",
    "Error",
    "Group",
    "GroupAtMoment",
    "GroupMember",
    "Moment",
    "MomentLike",
    "NotFoundError",
    "NotYetError",
    "PartitionCut",
    "Pin",
    "Record",
    "RequestError",
    "SeekResult",
    "Server",
    "SoughtOffset",
    "TlsError",
    "TopicAtMoment",
    "TopicView",
    "UnauthorizedError",
    "UnavailableError",
    "__version__",
    "connect",
    "moment_topic",
]
