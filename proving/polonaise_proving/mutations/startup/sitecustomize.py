"""Puts the mutation that the environment names into a process that starts: Python itself imports this module then."""

from __future__ import annotations

import os

from polonaise_proving.mutations.children import MUTATION
from polonaise_proving.mutations.known import put_in
from polonaise_proving.mutations.mutation import MutationDoesNotApply

if MUTATION in os.environ:
    try:
        put_in(os.environ[MUTATION])
    except MutationDoesNotApply as error:
        raise SystemExit(str(error)) from None  # any other error is only printed, and the process goes on without it
