"""Mutations: bugs that are put into production's code on purpose, one at a time, each of which judges have to find.

`known` has all of them, and puts one in; its neighbours have those of one part each. Planting one is one entry, which
also says what finds it: a seed of the simulator, a test, or a model. Only scenarios, the `simulator`, models and tests
put them in.
"""
