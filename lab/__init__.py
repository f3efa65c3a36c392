"""The project's laboratory: what it uses to choose, measure and publish (README.md). Not in the wheel."""
