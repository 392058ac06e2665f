"""Sweeps: many settings on one set, each judged and timed beside the full model, kept as they are measured.

plan = make_plan(grid(space), found, engine.capabilities(), source="stills", repeats=3, timed_items=10)
with SweepStore(path) as store:
    for progress in run_sweep(engine, plan, found, store):
        ...
progress.points          # a PointResult each, the full model first
"""
