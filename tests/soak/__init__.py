"""Random calls for hours, on a cluster whose workers are stopped, killed, added and retired.

    make soak                                      2,000 calls, or SOAK_CALLS
    PYTHONPATH=tests python -m soak --write        docs/reliability.md anew, of its last result

A run is made of rounds (run.py). In a round two clients call functions at the same time (calls.py),
while chunks and workers are dealt with badly (chaos.py)::

    client 1   call call call call --+
    client 2   call call call  call -+--> everything let go of, nothing left, processes measured
    chaos      kill  move  stop  ----+

After it come phases (phases.py), each with a cluster of its own that is dealt with in one way:
little memory, callers that leave, few connections, a short patience, workers that come and go.

Every result is held to NumPy's, and everything that is done has a deadline (watch.py), after which
all stacks are written down. What a run found is a dict, of which page.py makes docs/reliability.md.
"""
