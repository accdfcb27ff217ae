"""Streams over gRPC, by the contract `proto/delivery.proto`: to targets in any language, and a server for Python's.

- `endpoint.py`: the player's side, a client of `grpc.aio`. Begin here.
- `server.py`: the target's side. What it answers is decided by `TargetSession`, as for every transport.
- `messages.py`: encodes and decodes; the only file that imports protobuf. `delivery.binpb` is the contract, compiled by
  protoc.
- `channels.py`: the settings of channels and servers; `credentials.py`: TLS; `endings.py`: why a stream has ended;
  `finishing.py`: what must be done when a task is cancelled, too.

No other package imports grpc; `pip install 'polonaise[grpc]'` brings it.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("grpc") is None or find_spec("google") is None or find_spec("google.protobuf") is None:
    raise ExtraMissing("delivery over gRPC needs grpcio and protobuf: pip install 'polonaise[grpc]'")
