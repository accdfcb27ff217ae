"""Mutations: bugs that are put into production's code on purpose, one at a time, each of which judges have to find.

`known` has all of them, and puts one in; its neighbours have those of one part each. Only scenarios put them in.
"""
