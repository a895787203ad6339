"""Looking at a server: processes, GPUs, port, endpoints, stacks. Starts and reads; judges nothing."""
