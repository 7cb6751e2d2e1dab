"""The reason why an op is torch's."""


class Unsupported(Exception):
    """An op, or this use of it, has no counterpart. The text is the reason."""
