"""From evidence to a state, again and again (`Supervisor`), what was written down (`Journal`), and views of it."""
