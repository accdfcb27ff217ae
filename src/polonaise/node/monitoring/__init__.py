"""Tell operators over HTTP how a node is: `/live`, `/ready`, `/health`, `/metrics`. The node's state is only read.

- `metriclist.py`: every metric, with its meaning, and what it is read from if that is one measurement. Begin here.
- `servermetrics.py`, `storagemetrics.py`, `playerface.py`: the others of each kind of node, read on request.
- `exposition.py`: samples as text; the only file that imports prometheus_client.
- `httplistener.py`: the HTTP listener with its bounds; the only file that imports aiohttp.
- `face.py`: the paths, and what they answer.
- `running.py`: puts these together beside a running node.

A node that was not told to serve HTTP loads none of these modules.
"""
