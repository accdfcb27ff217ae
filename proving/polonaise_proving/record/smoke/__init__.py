"""What is noted of a smoke test.

`journal` is what a client writes down, `ledger` its SQL view, with what it was fed, `operations` the bodies of both;
`evidence` collects all of it into a `history`, which checks look at. `faultkinds` names what can be inflicted, `state`
says how far a run has come, `failure` that it went wrong.
"""
