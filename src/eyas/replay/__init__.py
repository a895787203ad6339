"""Accept length without a server: run the draft's unrolled steps from every position of a recorded text."""
