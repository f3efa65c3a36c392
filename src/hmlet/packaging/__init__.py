"""A finished run as something to ship: a folder that serves itself, and a repository on the Hugging Face Hub."""

from hmlet.packaging.folder import package

__all__ = ["package"]
