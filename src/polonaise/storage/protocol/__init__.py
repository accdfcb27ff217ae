"""The decisions of a storage node, as plain objects without clock or I/O. Begin with `replica`.

Times come as arguments, and what is to be done is returned. `make model` explores `replica` exhaustively.
"""
