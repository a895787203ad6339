"""The files that eyas reads and writes: their forms, schemas and fingerprints, and atomic writes. No torch, no network.

- `data_files`, `record_forms`, `conversation`, `json_lines`: conversations as data comes;
- `rows`, `eval_rows`, `probe_pack`: what is prepared for training and for evaluation;
- `eval_record`, `infer_record`, `bench_record`, `checkpoint`: what was measured, and a run's state;
- `atomic`, `fingerprint`, `changes`: how a file appears, and what it is.
"""
