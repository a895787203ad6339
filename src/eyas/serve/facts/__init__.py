"""What is known of a server at one moment (`Observation`, `Snapshot`), and the folder of a run (`RunFolder`)."""
