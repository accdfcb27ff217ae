"""Streams over gRPC, by the contract `proto/delivery.proto`: to targets in any language, and a server for Python's.

Begin with `endpoint.py`, the player's side, a client of `grpc.aio`; `server.py` is the target's, whose answers
`TargetSession` decides as for every transport. `messages.py` alone imports protobuf; `delivery.binpb` is the contract,
compiled by protoc.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("grpc") is None or find_spec("google") is None or find_spec("google.protobuf") is None:
    raise ExtraMissing("delivery over gRPC needs grpcio and protobuf: pip install 'polonaise[grpc]'")
