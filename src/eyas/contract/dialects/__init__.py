"""One file per foreign format: a pure translation to and from `DraftSpec`."""
