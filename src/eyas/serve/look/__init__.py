"""Looking at a server (`live_probes`) and starting its process (`start_process`): reads and starts, judges nothing."""
