"""The files eyas writes: schemas, fingerprints, atomic writes. No torch, no network."""
