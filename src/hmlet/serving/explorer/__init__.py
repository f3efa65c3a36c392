"""The explorer: its page, and the endpoints that only the page uses. They may change with it."""
