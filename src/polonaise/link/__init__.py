"""One framed connection: hello, requests and answers, heartbeats, deadlines, bounded writing.

Client, server and storage node speak through it and never import each other. The decisions of what to say belong to
them; here is only what every conversation needs.
"""
