"""Recorded cases of the public intrinsics libraries through our codecs."""
