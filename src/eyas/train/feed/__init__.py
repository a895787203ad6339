"""States that come from elsewhere than a target in this process: read ahead of the trainer, in the order of its plan.

- `read_ahead`: rows fetched by threads into bounded memory, handed out in order; knows nothing of where they come from;
- `fed_states`: the `StateSource` that the trainer reads from;
- `fetchers`: rows out of a store, and out of servers that compute them meanwhile.
"""
