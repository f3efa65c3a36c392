"""The version, in the one place that the package, the build and every run record read."""

VERSION = "0.1.0"
