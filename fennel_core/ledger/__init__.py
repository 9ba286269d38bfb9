"""The creation and destruction ledgers, and the commit protocol that keeps them crash-safe.

The steps of a commit are T1 (`reservation.py`), create (`creation.py`), T2 (`switching.py`), warm
(`warming.py`) and destroy (`destruction.py`); a failure before T2 is `commit_failure.py`. T2 is the
only commit point. Before it, every asset of the commit is held by a reservation, and dropping the
reservations condemns exactly the assets that nothing else holds. After it, references hold the new
version, and the previous one stays referenced until reads have moved.

Each function is one step. It reads the current state, does nothing if the step is already done, and
may be run by two processes at once: rows change only under the workspace's lock and along the
life-cycle tables (`lifecycle.py`). Creating and deleting topics cannot be part of a transaction, so
both are idempotent and are recorded only after they happened. A crash at any point therefore leaves
a state that the same functions can finish (`reconcile.py`).

Example: a commit adds dataset B to a branch that has A. T1 adds B's topic and job to the bank as
`pending`, reserves A and B for the commit, and writes creation entries for B. Create makes the
topic and marks the entries done. T2 registers B's job, replaces the reservations by references of
the new version and points the branch's `target` to it; reads still use the old version. Warming
waits for B's job and moves reads; destruction then removes what only the old version held.
"""
