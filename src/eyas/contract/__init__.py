"""What a draft is, in every format, and what every engine does with it. Reads headers only; never imports torch."""
