"""Running a model: one protocol, whatever executes it."""

from infsa_deploy.runtime.sessions.protocol import Session as Session
from infsa_deploy.runtime.sessions.protocol import TensorInfo as TensorInfo
