"""Pure decisions about fragments."""
