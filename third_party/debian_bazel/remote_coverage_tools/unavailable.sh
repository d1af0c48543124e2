#!/bin/sh
echo "Debian's Bazel has no coverage tools; use a Bazel from elsewhere" >&2
exit 1
