"""What a node tells operators over HTTP: `/health`, `/ready`, `/metrics`. A shell beside the node, which it only reads.

- `metriclist.py`: every metric, with its meaning. Begin here.
- `servermetrics.py`, `storagemetrics.py`: what each kind of node has to say, read from its state when somebody asks.
- `exposition.py`: samples as text; the only file that imports prometheus_client.
- `httplistener.py`: the HTTP listener with its bounds; the only file that imports aiohttp.
- `face.py`: the three paths, and what they answer.
- `running.py`: puts these together beside a node that runs.

Nothing here is loaded by a node that was not told to serve HTTP.
"""
