"""Tables of rows and cells, in plain text and in HTML."""

from simgpu.ground.tables import Table, text, to_html

__all__ = ["Table", "text", "to_html"]
