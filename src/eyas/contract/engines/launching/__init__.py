"""How a draft is launched on any engine: options, known flags, and the records that commands are composed of."""
